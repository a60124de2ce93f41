// expect: WRONG
// Keeps the sums of the blocks in bfloat16.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 1024;

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

__global__ void scan_blocks(const float* x, float* y, __nv_bfloat16* sums, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    float value = scan_block(i < n ? x[i] : 0.0f);
    if (i < n) y[i] = value;
    if (threadIdx.x == BLOCK - 1) sums[blockIdx.x] = __float2bfloat16(value);
}

__global__ void add_sums(float* y, const __nv_bfloat16* sums, int n) {
    float before = 0.0f;
    for (int b = 0; b < blockIdx.x; ++b) before += __bfloat162float(sums[b]);
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] += before;
}

void launch(const float* x, float* y, int n) {
    int blocks = (n + BLOCK - 1) / BLOCK;
    __nv_bfloat16* sums = nullptr;
    cudaMalloc(&sums, sizeof(__nv_bfloat16) * blocks);
    scan_blocks<<<blocks, BLOCK>>>(x, y, sums, n);
    add_sums<<<blocks, BLOCK>>>(y, sums, n);
    cudaFree(sums);
}
