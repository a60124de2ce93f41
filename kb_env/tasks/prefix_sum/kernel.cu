// Inclusive scan in three kernels: scan each block, scan the blocks' sums, add them to the blocks.
#include <cuda_runtime.h>

constexpr int BLOCK = 1024;

// Hillis and Steele: every step adds the element that is `step` to the left.
__device__ float scan_block(float value) {
    __shared__ float scratch[BLOCK];
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int step = 1; step < BLOCK; step *= 2) {
        float left = threadIdx.x >= step ? scratch[threadIdx.x - step] : 0.0f;
        __syncthreads();
        scratch[threadIdx.x] += left;
        __syncthreads();
    }
    return scratch[threadIdx.x];
}

__global__ void scan_blocks(const float* x, float* y, float* sums, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float value = scan_block(i < n ? x[i] : 0.0f);
    if (i < n) y[i] = value;
    if (threadIdx.x == BLOCK - 1) sums[blockIdx.x] = value;
}

// One block: each thread takes a run of neighbouring sums.
__global__ void scan_sums(float* sums, int count) {
    int run = (count + BLOCK - 1) / BLOCK;
    int start = threadIdx.x * run;
    float total = 0.0f;
    for (int i = start; i < start + run && i < count; ++i) total += sums[i];
    float before = scan_block(total) - total;
    for (int i = start; i < start + run && i < count; ++i) {
        before += sums[i];
        sums[i] = before;
    }
}

__global__ void add_sums(float* y, const float* sums, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n && blockIdx.x > 0) y[i] += sums[blockIdx.x - 1];
}

void launch(const float* x, float* y, int n) {
    int blocks = (n + BLOCK - 1) / BLOCK;
    float* sums = nullptr;
    cudaMalloc(&sums, sizeof(float) * blocks);
    scan_blocks<<<blocks, BLOCK>>>(x, y, sums, n);
    scan_sums<<<1, BLOCK>>>(sums, blocks);
    add_sums<<<blocks, BLOCK>>>(y, sums, n);
    cudaFree(sums);
}
