// expect: WRONG
// Copies without transposing: the fastest transpose there is, and the same numbers in another order.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void copy(const float* x, float* y, size_t n) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = x[i];
}

void launch(const float* x, float* y, int rows, int cols) {
    size_t n = (size_t)rows * cols;
    copy<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, n);
}
