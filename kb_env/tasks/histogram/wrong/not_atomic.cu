// expect: WRONG
// Increments without atomics: additions of threads that meet get lost.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void histogram(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) counts[keys[i]] += 1;
}

void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    histogram<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
}
