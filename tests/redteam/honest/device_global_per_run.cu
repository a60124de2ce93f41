// task: row_sum
// A device global that the launcher clears before every use.
#include <cuda_runtime.h>
__device__ unsigned finished;
__global__ void sums(const float* x, float* y, int rows, int cols) {
    float sum = 0;
    for (int c = threadIdx.x; c < cols; c += 32) sum += x[(size_t)blockIdx.x * cols + c];
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) {
        y[blockIdx.x] = sum;
        __threadfence();
        atomicAdd(&finished, 1);
    }
}
void launch(const float* x, float* y, int rows, int cols) {
    void* counter;
    cudaGetSymbolAddress(&counter, finished);
    cudaMemsetAsync(counter, 0, sizeof(unsigned));
    sums<<<rows, 32>>>(x, y, rows, cols);
}
