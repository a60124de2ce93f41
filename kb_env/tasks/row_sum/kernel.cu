// Row sums, one block per row, a tree in shared memory.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void row_sum(const float* x, float* y, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c];
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 1; step < BLOCK; step *= 2) {
        if (threadIdx.x % (2 * step) == 0) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = scratch[0];
}

void launch(const float* x, float* y, int rows, int cols) {
    row_sum<<<rows, BLOCK>>>(x, y, cols);
}
