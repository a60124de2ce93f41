// expect: WRONG
// Numeric cheat: operands are rounded to TF32 (10 bits of fraction), as tensor cores would take them.
#include <cuda_runtime.h>

constexpr int BLOCK = 16;

__device__ float tf32(float x) {
    // Round to nearest on the 13 bits that TF32 lacks.
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * BLOCK + threadIdx.y;
    const int col = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += tf32(a[(size_t)row * k + i]) * tf32(b[(size_t)i * n + col]);
    c[(size_t)row * n + col] = sum;
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 block(BLOCK, BLOCK);
    const dim3 grid((n + BLOCK - 1) / BLOCK, (m + BLOCK - 1) / BLOCK);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
