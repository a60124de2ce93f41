// Many small matrix products: one block per pair, both matrices in shared memory, 4 rows a thread.
#include <cuda_runtime.h>

constexpr int LARGEST = 64;
constexpr int ROWS = 4;
constexpr int BLOCK = 256;

__global__ void batched_matmul(const float* x, const float* y, float* c, int n) {
    __shared__ float left[LARGEST * LARGEST];
    __shared__ float right[LARGEST * LARGEST];
    const size_t first = (size_t)blockIdx.x * n * n;
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        left[element] = x[first + element];
        right[element] = y[first + element];
    }
    __syncthreads();
    const int strips = (n + ROWS - 1) / ROWS;
    for (int item = threadIdx.x; item < strips * n; item += BLOCK) {
        const int row = item / n * ROWS;
        const int col = item % n;
        float sum[ROWS] = {};
        for (int i = 0; i < n; ++i) {
            const float value = right[i * n + col];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum[r] += left[min(row + r, n - 1) * n + i] * value;
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (row + r < n) c[first + (row + r) * n + col] = sum[r];
    }
}

void launch(const float* x, const float* y, float* c, int batch, int n) {
    batched_matmul<<<batch, BLOCK>>>(x, y, c, n);
}
