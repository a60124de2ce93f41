// expect: WRONG|CRASHED|TIMED_OUT
// Takes its workspace for cleared: adds the blocks' sums to whatever cudaMalloc returned.
#include <cuda_runtime.h>

constexpr int BLOCK = 1024;

__global__ void add_up(const float* x, float* offsets, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    for (int b = blockIdx.x + 1; b < gridDim.x; ++b) atomicAdd(&offsets[b], x[i]);
}

__global__ void scan_blocks(const float* x, float* y, const float* offsets, int n) {
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
    if (i < n) y[i] = offsets[blockIdx.x] + scratch[threadIdx.x];
}

void launch(const float* x, float* y, int n) {
    int blocks = (n + BLOCK - 1) / BLOCK;
    float* offsets = nullptr;
    cudaMalloc(&offsets, sizeof(float) * blocks);
    add_up<<<blocks, BLOCK>>>(x, offsets, n);
    scan_blocks<<<blocks, BLOCK>>>(x, y, offsets, n);
    cudaFree(offsets);
}
