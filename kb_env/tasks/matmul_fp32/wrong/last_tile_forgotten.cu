// expect: WRONG
// A plausible bug: the loop over tiles rounds k down, so the last partial tile is never added.
#include <cuda_runtime.h>

constexpr int TILE = 16;

__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int row = blockIdx.y * TILE + threadIdx.y;
    const int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int tile = 0; tile < k / TILE; ++tile) {
        const int start = tile * TILE;
        a_tile[threadIdx.y][threadIdx.x] = row < m ? a[(size_t)row * k + start + threadIdx.x] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = col < n ? b[(size_t)(start + threadIdx.y) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[(size_t)row * n + col] = sum;
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 block(TILE, TILE);
    const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
