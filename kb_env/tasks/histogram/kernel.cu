// Histogram, one key per thread, one atomic addition to global memory per key.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void histogram(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i]], 1);
}

void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    histogram<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
}
