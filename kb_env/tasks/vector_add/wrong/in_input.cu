// expect: WRONG
// Gives the right sum, but scribbles over its read-only input (so that a later reference would agree with anything).
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void add(float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
        a[i] = 0.0f;
    }
}

void launch(const float* a, const float* b, float* c, int n) {
    add<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(const_cast<float*>(a), b, c, n);
}
