// Matrix product in float16 with float32 sums, 32 x 32 tiles in shared memory, no tensor cores.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int TILE = 32;

__global__ void matmul(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int row = blockIdx.y * TILE + threadIdx.y;
    const int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        const int a_col = start + threadIdx.x;
        const int b_row = start + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < m && a_col < k ? __half2float(a[(size_t)row * k + a_col]) : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = b_row < k && col < n ? __half2float(b[(size_t)b_row * n + col]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[(size_t)row * n + col] = __float2half(sum);
}

void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const dim3 block(TILE, TILE);
    const dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
