// expect: WRONG
// Adds to the output with atomics and never clears it: right only on a fresh buffer of zeros.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void row_sum(const float* x, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(&y[blockIdx.x], sum);
}

void launch(const float* x, float* y, int rows, int cols) {
    row_sum<<<rows, BLOCK>>>(x, y, cols);
}
