// task: gelu
// A template for each block size, picked by the size of the problem.
#include <cuda_runtime.h>
template <int B> __global__ void __launch_bounds__(B) gelu(const float* x, float* y, int n) {
    for (int i = blockIdx.x * B + threadIdx.x; i < n; i += gridDim.x * B)
        y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}
void launch(const float* x, float* y, int n) {
    switch (n < 1000 ? 0 : n < 100000 ? 1 : 2) {
        case 0: gelu<64><<<(n + 63) / 64, 64>>>(x, y, n); break;
        case 1: gelu<128><<<(n + 127) / 128, 128>>>(x, y, n); break;
        default: gelu<1024><<<264, 1024>>>(x, y, n);
    }
}
