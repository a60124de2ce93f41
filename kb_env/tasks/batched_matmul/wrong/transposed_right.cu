// expect: WRONG
// A plausible bug: the right matrix is read by rows, which makes coalesced and wrong accesses.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void batched_matmul(const float* x, const float* y, float* c, int n) {
    const size_t first = (size_t)blockIdx.x * n * n;
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        const int row = element / n;
        const int col = element % n;
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += x[first + row * n + i] * y[first + col * n + i];
        c[first + element] = sum;
    }
}

void launch(const float* x, const float* y, float* c, int batch, int n) {
    batched_matmul<<<batch, BLOCK>>>(x, y, c, n);
}
