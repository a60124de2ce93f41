// expect: WRONG
// Skips the statistics: assumes that every row has mean 0 and variance 1, as a fixed distribution would.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void scale_and_shift(const float* x, const float* gamma, const float* beta, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = in[c] * gamma[c] + beta[c];
}

void launch(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols) {
    scale_and_shift<<<rows, BLOCK>>>(x, gamma, beta, y, cols);
}
