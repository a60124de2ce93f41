// expect: WRONG
// A plausible slip: erf of x instead of x / sqrt(2).
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;

__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1.0f + erff(x[i]));
}

void launch(const float* x, float* y, int n) {
    gelu<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, n);
}
