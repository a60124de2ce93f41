// task: transpose
// Tiles come to shared memory by the tensor copy engine, through a descriptor that the launcher encodes.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
__global__ void plain(const float* x, float* y, int rows, int cols) {
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    if (r < rows && c < cols) y[(size_t)c * rows + r] = x[(size_t)r * cols + c];
}
__global__ void tiles(const __grid_constant__ CUtensorMap map, float* y, int rows, int cols) {
    __shared__ __align__(128) float tile[32 * 32];
    __shared__ __align__(8) uint64_t barrier;
    unsigned bar = unsigned(__cvta_generic_to_shared(&barrier)), to = unsigned(__cvta_generic_to_shared(tile));
    int c = blockIdx.x * 32, r = blockIdx.y * 32, thread = threadIdx.y * 32 + threadIdx.x;
    if (thread == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (thread == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" ::"r"(bar));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
            "l"(&map), "r"(c), "r"(r), "r"(bar)
            : "memory");
    }
    asm volatile(
        "{\n.reg .pred done;\nwait: mbarrier.try_wait.parity.shared.b64 done, [%0], 0;\n@!done bra wait;\n}" ::"r"(bar)
        : "memory");
    for (int k = threadIdx.y; k < 32; k += 8)
        if (c + k < cols && r + int(threadIdx.x) < rows) y[(size_t)(c + k) * rows + r + threadIdx.x] = tile[threadIdx.x * 32 + k];
}
typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
void launch(const float* x, float* y, int rows, int cols) {
    dim3 grid((cols + 31) / 32, (rows + 31) / 32);
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
    CUtensorMap map;
    cuuint64_t dims[2] = {cuuint64_t(cols), cuuint64_t(rows)}, strides[1] = {cuuint64_t(cols) * 4};
    cuuint32_t box[2] = {32, 32}, steps[2] = {1, 1};
    bool fits = cols % 4 == 0 && found == cudaDriverEntryPointSuccess;
    if (fits)
        fits = Encode(function)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<float*>(x), dims, strides, box, steps,
                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
    if (fits) tiles<<<grid, dim3(32, 8)>>>(map, y, rows, cols);
    else plain<<<grid, dim3(32, 32)>>>(x, y, rows, cols);
}
