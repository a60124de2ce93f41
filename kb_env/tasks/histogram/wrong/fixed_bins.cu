// expect: WRONG
// Has shared memory for 1024 bins, however many there are.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int BINS = 1024;

__global__ void histogram(const int* keys, int* counts, int n) {
    __shared__ int local[BINS];
    for (int b = threadIdx.x; b < BINS; b += BLOCK) local[b] = 0;
    __syncthreads();
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&local[keys[i] % BINS], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += BLOCK)
        if (local[b] != 0) atomicAdd(&counts[b], local[b]);
}

void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    histogram<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
}
