// task: gelu
// The constants of the formula in constant memory, uploaded by the launcher.
#include <cuda_runtime.h>
__constant__ float constants[3];
__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = constants[0] * x[i] * (constants[1] + erff(x[i] * constants[2]));
}
void launch(const float* x, float* y, int n) {
    const float values[3] = {0.5f, 1.0f, 0.70710678f};
    cudaMemcpyToSymbol(constants, values, sizeof values);
    gelu<<<(n + 255) / 256, 256>>>(x, y, n);
}
