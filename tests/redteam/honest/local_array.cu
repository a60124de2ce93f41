// task: gelu
// An array in local memory indexed at run time.
#include <cuda_runtime.h>
__global__ void gelu(const float* x, float* y, int n, int turn) {
    float keep[8];
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    for (int k = 0; k < 8; k++) keep[(k + turn) % 8] = i + k < n ? x[i + k] : 0.0f;
    for (int k = 0; k < 8; k++)
        if (i + k < n) y[i + k] = 0.5f * keep[(k + turn) % 8] * (1.0f + erff(keep[(k + turn) % 8] * 0.70710678f));
}
void launch(const float* x, float* y, int n) { gelu<<<(n + 2047) / 2048, 256>>>(x, y, n, n % 8); }
