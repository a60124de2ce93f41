// task: vector_add
// Carries kernels, tables and globals that it never uses.
#include <cuda_runtime.h>
__device__ float spare[64];
__constant__ int unused_table[16];
__global__ void unused(float* c) { c[0] = spare[threadIdx.x] + unused_table[0]; }
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    if (n < 0) unused<<<1, 1>>>(c);
    add<<<(n + 255) / 256, 256>>>(a, b, c, n);
}
