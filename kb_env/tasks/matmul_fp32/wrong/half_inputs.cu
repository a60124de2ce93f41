// expect: WRONG
// Numeric cheat: operands are rounded to float16, halving the traffic of a float32 task.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 16;

__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * BLOCK + threadIdx.y;
    const int col = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) {
        const __half x = __float2half(a[(size_t)row * k + i]);
        const __half y = __float2half(b[(size_t)i * n + col]);
        sum += __half2float(x) * __half2float(y);
    }
    c[(size_t)row * n + col] = sum;
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 block(BLOCK, BLOCK);
    const dim3 grid((n + BLOCK - 1) / BLOCK, (m + BLOCK - 1) / BLOCK);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
