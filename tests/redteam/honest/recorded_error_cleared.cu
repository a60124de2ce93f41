// task: vector_add
// Asks for a launch attribute that fails, clears the error and works without it.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    if (cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) != cudaSuccess) cudaGetLastError();
    add<<<(n + 255) / 256, 256>>>(a, b, c, n);
}
