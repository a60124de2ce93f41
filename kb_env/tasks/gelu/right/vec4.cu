// Exact GELU, float4 loads and stores, two quads per thread in flight; the tail element by element.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;
constexpr int QUADS = 2;

__device__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); }

__device__ float4 gelu(float4 v) { return make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w)); }

__global__ void gelu_quads(const float* x, float* y, int n) {
    const float4* in = reinterpret_cast<const float4*>(x);
    float4* out = reinterpret_cast<float4*>(y);
    int quads = n / 4;
    int base = blockIdx.x * BLOCK * QUADS + threadIdx.x;
    float4 v[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
        if (base + q * BLOCK < quads) v[q] = __ldcs(in + base + q * BLOCK);
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
        if (base + q * BLOCK < quads) __stcs(out + base + q * BLOCK, gelu(v[q]));
    int rest = quads * 4 + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) y[rest] = gelu(x[rest]);
}

void launch(const float* x, float* y, int n) {
    int quads = n / 4;
    int blocks = (quads + BLOCK * QUADS - 1) / (BLOCK * QUADS);
    gelu_quads<<<blocks > 0 ? blocks : 1, BLOCK>>>(x, y, n);
}
