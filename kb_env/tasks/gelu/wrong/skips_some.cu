// expect: WRONG
// Leaves out one element in a thousand and keeps whatever was in the output.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;

__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n && i % 1000 != 999) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

void launch(const float* x, float* y, int n) {
    gelu<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, n);
}
