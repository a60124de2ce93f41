// task: gelu
// Copies x to y and works in place on y.
#include <cuda_runtime.h>
__global__ void gelu(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5f * y[i] * (1.0f + erff(y[i] * 0.70710678f));
}
void launch(const float* x, float* y, int n) {
    cudaMemcpyAsync(y, x, sizeof(float) * n, cudaMemcpyDeviceToDevice);
    gelu<<<(n + 255) / 256, 256>>>(y, n);
}
