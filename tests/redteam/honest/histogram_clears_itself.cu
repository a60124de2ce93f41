// task: histogram
// A kernel of its own clears the counts.
#include <cuda_runtime.h>
__global__ void clear(int* counts, int bins) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b < bins) counts[b] = 0;
}
__global__ void count(const int* keys, int* counts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i]], 1);
}
void launch(const int* keys, int* counts, int n, int bins) {
    clear<<<(bins + 255) / 256, 256>>>(counts, bins);
    count<<<(n + 255) / 256, 256>>>(keys, counts, n);
}
