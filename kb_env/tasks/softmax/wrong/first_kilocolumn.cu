// expect: WRONG
// One thread per column and at most 1024 threads: columns from 1024 on are missing from maximum and sum.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 1024;

__global__ void softmax_rows(const float* x, float* y, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    int t = threadIdx.x;
    scratch[t] = t < cols ? in[t] : -INFINITY;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (t < step) scratch[t] = fmaxf(scratch[t], scratch[t + step]);
        __syncthreads();
    }
    float largest = scratch[0];
    __syncthreads();
    scratch[t] = t < cols ? expf(in[t] - largest) : 0.0f;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (t < step) scratch[t] += scratch[t + step];
        __syncthreads();
    }
    for (int c = t; c < cols; c += BLOCK) out[c] = expf(in[c] - largest) / scratch[0];
}

void launch(const float* x, float* y, int rows, int cols) {
    softmax_rows<<<rows, BLOCK>>>(x, y, cols);
}
