// task: prefix_sum
// Scans the sums of the blocks recursively on the host's side, with as many launches as levels.
#include <cuda_runtime.h>
__global__ void scan(const float* x, float* y, float* sums, int n) {
    __shared__ float s[512];
    int i = blockIdx.x * 512 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = 1; step < 512; step *= 2) {
        float left = threadIdx.x >= step ? s[threadIdx.x - step] : 0.0f;
        __syncthreads();
        s[threadIdx.x] += left;
        __syncthreads();
    }
    if (i < n) y[i] = s[threadIdx.x];
    if (threadIdx.x == 511 && sums != nullptr) sums[blockIdx.x] = s[511];
}
__global__ void shift(float* y, const float* sums, int n) {
    int i = blockIdx.x * 512 + threadIdx.x;
    if (i < n && blockIdx.x > 0) y[i] += sums[blockIdx.x - 1];
}
static void level(const float* x, float* y, int n) {
    int blocks = (n + 511) / 512;
    float* sums = nullptr;
    if (blocks > 1) cudaMalloc(&sums, sizeof(float) * blocks);
    scan<<<blocks, 512>>>(x, y, sums, n);
    if (blocks > 1) {
        level(sums, sums, blocks);
        shift<<<blocks, 512>>>(y, sums, n);
        cudaFree(sums);
    }
}
void launch(const float* x, float* y, int n) { level(x, y, n); }
