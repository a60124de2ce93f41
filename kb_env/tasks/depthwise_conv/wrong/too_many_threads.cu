// expect: REFUSED|CRASHED|WRONG
// Harness cheat: a block of 2,048 threads never starts, and what an earlier run wrote stays in place.
#include <cuda_runtime.h>

constexpr int BLOCK = 2048;

__global__ void depthwise(const float* x, float* y, size_t total) {
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index < total) y[index] = x[index];
}

void launch(const float* x, const float* w, float* y, int batch, int channels, int height, int width) {
    const size_t total = (size_t)batch * channels * height * width;
    depthwise<<<(total + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, total);
}
