// task: vector_add
// Kernels with internal linkage, in an anonymous namespace and static.
#include <cuda_runtime.h>
namespace {
__global__ void even(const float* a, const float* b, float* c, int n) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) c[i] = a[i] + b[i];
}
}
static __global__ void odd(const float* a, const float* b, float* c, int n) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    int blocks = (n / 2 + 256) / 256;
    even<<<blocks, 256>>>(a, b, c, n);
    odd<<<blocks, 256>>>(a, b, c, n);
}
