// expect: WRONG|CRASHED
// Writes a whole number of blocks: right inside the vector, and over whatever lies behind it.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    c[i] = i < n ? a[i] + b[i] : 0.0f;
}

void launch(const float* a, const float* b, float* c, int n) {
    add<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(a, b, c, n);
}
