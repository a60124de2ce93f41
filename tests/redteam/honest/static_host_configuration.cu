// task: vector_add
// Works out its configuration once and keeps it in a static, as libraries do.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
static int best_block() {
    static int block = [] {
        int grid = 0, size = 0;
        cudaOccupancyMaxPotentialBlockSize(&grid, &size, add, 0, 0);
        return size;
    }();
    return block;
}
void launch(const float* a, const float* b, float* c, int n) { add<<<(n + best_block() - 1) / best_block(), best_block()>>>(a, b, c, n); }
