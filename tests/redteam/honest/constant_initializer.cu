// task: gelu
// A constant array with an initializer in the module and a device array beside it.
#include <cuda_runtime.h>
__constant__ float inverse_root = 0.70710678f;
__device__ const float halves[2] = {0.5f, 1.0f};
__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = halves[0] * x[i] * (halves[1] + erff(x[i] * inverse_root));
}
void launch(const float* x, float* y, int n) { gelu<<<(n + 255) / 256, 256>>>(x, y, n); }
