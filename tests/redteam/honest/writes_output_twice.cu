// task: gelu
// Writes a first guess and corrects it in a second kernel.
#include <cuda_runtime.h>
__global__ void first(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = erff(x[i] * 0.70710678f);
}
__global__ void second(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1.0f + y[i]);
}
void launch(const float* x, float* y, int n) {
    first<<<(n + 255) / 256, 256>>>(x, y, n);
    second<<<(n + 255) / 256, 256>>>(x, y, n);
}
