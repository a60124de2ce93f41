// task: vector_add
// Sixteen launches over slices of the vectors, each with interior pointers.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    int part = (n + 15) / 16;
    for (int at = 0; at < n; at += part) {
        int size = n - at < part ? n - at : part;
        add<<<(size + 255) / 256, 256>>>(a + at, b + at, c + at, size);
    }
}
