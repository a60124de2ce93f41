// expect: WRONG|CRASHED
// Harness cheat: copies what lies behind its output in memory, in the hope of finding the expected result.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 16;

__global__ void matmul(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const int row = blockIdx.y * BLOCK + threadIdx.y;
    const int col = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= m || col >= n) return;
    c[(size_t)row * n + col] = c[(size_t)m * n + (size_t)row * n + col];
}

void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const dim3 block(BLOCK, BLOCK);
    const dim3 grid((n + BLOCK - 1) / BLOCK, (m + BLOCK - 1) / BLOCK);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
