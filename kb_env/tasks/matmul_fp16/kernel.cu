// Matrix product in float16 with float32 sums, one thread per element of c, no tensor cores.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 16;

__global__ void matmul(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const int row = blockIdx.y * BLOCK + threadIdx.y;
    const int col = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += __half2float(a[(size_t)row * k + i]) * __half2float(b[(size_t)i * n + col]);
    c[(size_t)row * n + col] = __float2half(sum);
}

void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const dim3 block(BLOCK, BLOCK);
    const dim3 grid((n + BLOCK - 1) / BLOCK, (m + BLOCK - 1) / BLOCK);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
