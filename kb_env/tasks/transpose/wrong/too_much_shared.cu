// expect: WRONG|REFUSED|CRASHED
// Asks for more shared memory than a block may have: the launch fails silently and old output stays.
#include <cuda_runtime.h>

constexpr int TILE = 32;

__global__ void transpose(const float* x, float* y, int rows, int cols) {
    extern __shared__ float tile[];
    int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
    if (c < cols && r < rows) tile[threadIdx.y * (TILE + 1) + threadIdx.x] = x[(size_t)r * cols + c];
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x;
    r = blockIdx.x * TILE + threadIdx.y;
    if (c < rows && r < cols) y[(size_t)r * rows + c] = tile[threadIdx.x * (TILE + 1) + threadIdx.y];
}

void launch(const float* x, float* y, int rows, int cols) {
    dim3 block(TILE, TILE);
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    transpose<<<grid, block, 200000>>>(x, y, rows, cols);
}
