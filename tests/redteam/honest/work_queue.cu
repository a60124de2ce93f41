// task: vector_add
// Blocks draw their work from a counter in workspace that is cleared first.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n, int* next) {
    __shared__ int tile;
    for (;;) {
        if (threadIdx.x == 0) tile = atomicAdd(next, 1);
        __syncthreads();
        int at = tile * 1024;
        __syncthreads();
        if (at >= n) return;
        for (int i = at + threadIdx.x; i < at + 1024 && i < n; i += blockDim.x) c[i] = a[i] + b[i];
    }
}
void launch(const float* a, const float* b, float* c, int n) {
    int* next;
    cudaMalloc(&next, sizeof(int));
    cudaMemsetAsync(next, 0, sizeof(int));
    add<<<264, 256>>>(a, b, c, n, next);
    cudaFree(next);
}
