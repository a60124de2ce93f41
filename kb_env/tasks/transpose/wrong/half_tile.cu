// expect: WRONG
// Keeps the tile in float16 to halve the shared memory.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int TILE = 32;

__global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ __half tile[TILE][TILE + 2];
    int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
    if (c < cols && r < rows) tile[threadIdx.y][threadIdx.x] = __float2half(x[(size_t)r * cols + c]);
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x;
    r = blockIdx.x * TILE + threadIdx.y;
    if (c < rows && r < cols) y[(size_t)r * rows + c] = __half2float(tile[threadIdx.x][threadIdx.y]);
}

void launch(const float* x, float* y, int rows, int cols) {
    dim3 block(TILE, TILE);
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    transpose<<<grid, block>>>(x, y, rows, cols);
}
