// expect: WRONG
// The tanh approximation of GELU: off by up to 5e-4, far more than float32 rounding.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;

__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    y[i] = 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
}

void launch(const float* x, float* y, int n) {
    gelu<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, n);
}
