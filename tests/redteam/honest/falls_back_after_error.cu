// task: vector_add
// Tries a block that is too large, sees the error and takes a smaller one.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    add<<<(n + 2047) / 2048, 2048>>>(a, b, c, n);
    if (cudaGetLastError() != cudaSuccess) add<<<(n + 511) / 512, 512>>>(a, b, c, n);
}
