// Matrix transpose through a padded 32 x 32 tile in shared memory: reads and writes are coalesced.
#include <cuda_runtime.h>

constexpr int TILE = 32;
constexpr int BLOCK_Y = 8;

__global__ void transpose_tile(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    int c = blockIdx.x * TILE + threadIdx.x;
    int r = blockIdx.y * TILE + threadIdx.y;
#pragma unroll
    for (int k = 0; k < TILE; k += BLOCK_Y)
        if (c < cols && r + k < rows) tile[threadIdx.y + k][threadIdx.x] = x[(size_t)(r + k) * cols + c];
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x;
    r = blockIdx.x * TILE + threadIdx.y;
#pragma unroll
    for (int k = 0; k < TILE; k += BLOCK_Y)
        if (c < rows && r + k < cols) y[(size_t)(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

void launch(const float* x, float* y, int rows, int cols) {
    dim3 block(TILE, BLOCK_Y);
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    transpose_tile<<<grid, block>>>(x, y, rows, cols);
}
