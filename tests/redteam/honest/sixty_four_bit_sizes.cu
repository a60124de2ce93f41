// task: gelu
// Sizes and indices as 64-bit parameters of mixed width beside pointers.
#include <cuda_runtime.h>
__global__ void gelu(unsigned char tag, const float* x, short pad, float* y, unsigned long long n, bool on) {
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (on && tag == 7 && pad == -3 && i < n) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}
void launch(const float* x, float* y, int n) { gelu<<<(n + 255) / 256, 256>>>(7, x, -3, y, n, true); }
