// task: gelu
// Calls a device function through a pointer chosen at run time.
#include <cuda_runtime.h>
typedef float (*Map)(float);
__device__ float exact(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }
__device__ float through_erfc(float v) { return 0.5f * v * erfcf(-v * 0.70710678f); }
__global__ void map(const float* x, float* y, int n, int which) {
    Map f = which ? through_erfc : exact;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = f(x[i]);
}
void launch(const float* x, float* y, int n) { map<<<(n + 255) / 256, 256>>>(x, y, n, n & 1); }
