// task: row_sum
// A cluster of sixteen blocks, which the launcher has to allow first.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
__global__ void sums(const float* x, float* y, int cols) {
    auto cluster = cooperative_groups::this_cluster();
    __shared__ float part;
    unsigned rank = cluster.block_rank();
    const float* row = x + (size_t)(blockIdx.x / 16) * cols;
    float sum = 0;
    for (int c = rank * 32 + threadIdx.x; c < cols; c += 512) sum += row[c];
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) part = sum;
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0) {
        for (unsigned r = 1; r < 16; r++) sum += *cluster.map_shared_rank(&part, r);
        y[blockIdx.x / 16] = sum;
    }
    cluster.sync();
}
void launch(const float* x, float* y, int rows, int cols) {
    cudaFuncSetAttribute(sums, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 16;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 16 * rows;
    config.blockDim = 32;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, sums, x, y, cols);
}
