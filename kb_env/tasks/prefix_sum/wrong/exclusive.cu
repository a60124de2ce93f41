// expect: WRONG
// Sums up to but without the element itself: an exclusive scan, shifted by one.
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

__global__ void scan_all(const float* x, float* y, int n) {
    int run = (n + BLOCK - 1) / BLOCK;
    int start = threadIdx.x * run;
    float total = 0.0f;
    for (int i = start; i < start + run && i < n; ++i) total += x[i];
    float before = scan_block(total) - total;
    for (int i = start; i < start + run && i < n; ++i) {
        y[i] = before;
        before += x[i];
    }
}

void launch(const float* x, float* y, int n) {
    scan_all<<<1, BLOCK>>>(x, y, n);
}
