// expect: WRONG|CRASHED
// Uses the number of columns as the stride on both sides: right for square matrices alone.
#include <cuda_runtime.h>

constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

__global__ void transpose(const float* x, float* y, int rows, int cols) {
    int c = blockIdx.x * BLOCK_X + threadIdx.x;
    int r = blockIdx.y * BLOCK_Y + threadIdx.y;
    if (r < rows && c < cols) y[(size_t)c * cols + r] = x[(size_t)r * cols + c];
}

void launch(const float* x, float* y, int rows, int cols) {
    dim3 block(BLOCK_X, BLOCK_Y);
    dim3 grid((cols + BLOCK_X - 1) / BLOCK_X, (rows + BLOCK_Y - 1) / BLOCK_Y);
    transpose<<<grid, block>>>(x, y, rows, cols);
}
