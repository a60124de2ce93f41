// task: vector_add
// Holds an assertion that is true and a message that is never printed.
#include <cuda_runtime.h>
#include <cassert>
#include <cstdio>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(gridDim.x > 0);
    if (n < 0) printf("no elements: %d\n", n);
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) { add<<<(n + 255) / 256, 256>>>(a, b, c, n); }
