// expect: WRONG
// Counts a quarter of the keys and multiplies by four.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void histogram(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (4 * i < n) atomicAdd(&counts[keys[4 * i]], 4);
}

void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    histogram<<<(n / 4 + BLOCK) / BLOCK, BLOCK>>>(keys, counts, n);
}
