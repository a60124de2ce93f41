// Vector addition, one element per thread.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

void launch(const float* a, const float* b, float* c, int n) {
    add<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(a, b, c, n);
}
