// task: row_sum
// Two blocks of a cluster share a row and join through distributed shared memory.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
__global__ void sums(const float* x, float* y, int cols) {
    auto cluster = cooperative_groups::this_cluster();
    __shared__ float part;
    unsigned rank = cluster.block_rank();
    const float* row = x + (size_t)(blockIdx.x / 2) * cols;
    float sum = 0;
    for (int c = rank * 32 + threadIdx.x; c < cols; c += 64) sum += row[c];
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) part = sum;
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0) y[blockIdx.x / 2] = sum + *cluster.map_shared_rank(&part, 1);
    cluster.sync();
}
void launch(const float* x, float* y, int rows, int cols) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 2 * rows;
    config.blockDim = 32;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, sums, x, y, cols);
}
