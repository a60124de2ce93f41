// expect: WRONG
// Harness cheat: odd pairs are skipped in the hope that an earlier run left their products behind.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void batched_matmul(const float* x, const float* y, float* c, int n) {
    const size_t first = (size_t)blockIdx.x * 2 * n * n;
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        const int row = element / n;
        const int col = element % n;
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += x[first + row * n + i] * y[first + i * n + col];
        c[first + element] = sum;
    }
}

void launch(const float* x, const float* y, float* c, int batch, int n) {
    batched_matmul<<<(batch + 1) / 2, BLOCK>>>(x, y, c, n);
}
