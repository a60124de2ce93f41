// task: histogram
// Lanes with the same key find each other and add once.
#include <cuda_runtime.h>
__global__ void count(const int* keys, int* counts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned active = __ballot_sync(~0u, i < n);
    if (i >= n) return;
    int key = keys[i];
    unsigned same = __match_any_sync(active, key);
    if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(&counts[key], __popc(same));
}
void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    count<<<(n + 255) / 256, 256>>>(keys, counts, n);
}
