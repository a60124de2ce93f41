// expect: WRONG
// The grid is rounded down, so the last n % 256 elements are never written.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

void launch(const float* a, const float* b, float* c, int n) {
    int blocks = n / BLOCK > 0 ? n / BLOCK : 1;
    add<<<blocks, BLOCK>>>(a, b, c, n);
}
