// Bias, GELU, residual and RMS norm in one kernel, one block per row; the row stays in registers
// (16 bytes a load), so that each matrix crosses device memory once.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;
constexpr int QUADS = 4;  // 16-byte pieces of a row per thread: rows up to BLOCK * QUADS * 4 = 4096
constexpr float EPSILON = 1e-5f;

__device__ float hidden(float x, float bias, float residual) {
    const float t = x + bias;
    return 0.5f * t * (1.0f + erff(t * 0.70710678f)) + residual;
}

__device__ float block_sum(float sum) {
    __shared__ float parts[BLOCK / 32];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < BLOCK / 32; ++i) sum += parts[i];
    return sum;
}

__global__ void __launch_bounds__(BLOCK)
fused(const float4* __restrict__ x, const float4* __restrict__ bias, const float4* __restrict__ residual,
      const float4* __restrict__ weight, float4* __restrict__ y, int cols) {
    const int quads = cols / 4;
    const size_t first = (size_t)blockIdx.x * quads;
    float4 a[QUADS], r[QUADS];
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int q = threadIdx.x + BLOCK * i;
        a[i] = r[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (q < quads) {
            a[i] = __ldcs(x + first + q);
            r[i] = __ldcs(residual + first + q);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int q = threadIdx.x + BLOCK * i;
        if (q >= quads) continue;
        const float4 b = __ldg(bias + q);
        a[i] = make_float4(hidden(a[i].x, b.x, r[i].x), hidden(a[i].y, b.y, r[i].y), hidden(a[i].z, b.z, r[i].z),
                           hidden(a[i].w, b.w, r[i].w));
        sum += a[i].x * a[i].x + a[i].y * a[i].y + a[i].z * a[i].z + a[i].w * a[i].w;
    }
    const float scale = rsqrtf(block_sum(sum) / cols + EPSILON);
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const int q = threadIdx.x + BLOCK * i;
        if (q >= quads) continue;
        const float4 w = __ldg(weight + q);
        __stcs(y + first + q, make_float4(a[i].x * w.x * scale, a[i].y * w.y * scale, a[i].z * w.z * scale,
                                          a[i].w * w.w * scale));
    }
}

// Rows of any length: h goes through y.
__global__ void __launch_bounds__(BLOCK)
fused_any(const float* x, const float* bias, const float* residual, const float* weight, float* y, int cols) {
    const size_t first = (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        const float h = hidden(x[first + c], bias[c], residual[first + c]);
        y[first + c] = h;
        sum += h * h;
    }
    const float scale = rsqrtf(block_sum(sum) / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK) y[first + c] *= weight[c] * scale;
}

void launch(const float* x, const float* bias, const float* residual, const float* weight, float* y, int rows,
            int cols) {
    if (cols % 4 == 0 && cols <= BLOCK * QUADS * 4)
        fused<<<rows, BLOCK>>>((const float4*)x, (const float4*)bias, (const float4*)residual, (const float4*)weight,
                               (float4*)y, cols);
    else
        fused_any<<<rows, BLOCK>>>(x, bias, residual, weight, y, cols);
}
