// task: softmax
// Maximum, sum and result in three kernels with workspace for both statistics.
#include <cuda_runtime.h>
#include <math.h>
__global__ void highest(const float* x, float* top, int cols) {
    float v = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += 32) v = fmaxf(v, x[(size_t)blockIdx.x * cols + c]);
    for (int s = 16; s > 0; s /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, s));
    if (threadIdx.x == 0) top[blockIdx.x] = v;
}
__global__ void total(const float* x, const float* top, float* sums, int cols) {
    float v = 0;
    for (int c = threadIdx.x; c < cols; c += 32) v += expf(x[(size_t)blockIdx.x * cols + c] - top[blockIdx.x]);
    for (int s = 16; s > 0; s /= 2) v += __shfl_xor_sync(~0u, v, s);
    if (threadIdx.x == 0) sums[blockIdx.x] = v;
}
__global__ void result(const float* x, const float* top, const float* sums, float* y, int cols) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[(size_t)blockIdx.x * cols + c] = expf(x[(size_t)blockIdx.x * cols + c] - top[blockIdx.x]) / sums[blockIdx.x];
}
void launch(const float* x, float* y, int rows, int cols) {
    float* work;
    cudaMalloc(&work, sizeof(float) * 2 * rows);
    highest<<<rows, 32>>>(x, work, cols);
    total<<<rows, 32>>>(x, work, work + rows, cols);
    result<<<rows, 256>>>(x, work, work + rows, y, cols);
    cudaFree(work);
}
