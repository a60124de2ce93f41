// expect: WRONG
// Scans each block and forgets to carry the sums over: right up to 1024 elements.
#include <cuda_runtime.h>

constexpr int BLOCK = 1024;

__global__ void scan_blocks(const float* x, float* y, int n) {
    __shared__ float scratch[BLOCK];
    int i = blockIdx.x * BLOCK + threadIdx.x;
    scratch[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 1; step < BLOCK; step *= 2) {
        float left = threadIdx.x >= step ? scratch[threadIdx.x - step] : 0.0f;
        __syncthreads();
        scratch[threadIdx.x] += left;
        __syncthreads();
    }
    if (i < n) y[i] = scratch[threadIdx.x];
}

void launch(const float* x, float* y, int n) {
    scan_blocks<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, n);
}
