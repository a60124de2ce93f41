// expect: WRONG
// Counts on top of whatever the output held.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void histogram(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i]], 1);
}

void launch(const int* keys, int* counts, int n, int bins) {
    histogram<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
}
