// Row sums, one block per row, four float4 loads in flight per thread, shuffles to finish.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int UNROLL = 4;

__device__ float block_sum(float value) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    if (threadIdx.x == 0)
        for (int w = 0; w < WARPS; ++w) value += partial[w];
    return value;
}

__device__ float quad_sum(float4 v) { return (v.x + v.y) + (v.z + v.w); }

__global__ void row_sum_quads(const float4* x, float* y, int quads) {
    const float4* in = x + (size_t)blockIdx.x * quads;
    float sum = 0.0f;
    int c = threadIdx.x;
    for (; c + (UNROLL - 1) * BLOCK < quads; c += UNROLL * BLOCK) {
        float4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = __ldcs(in + c + u * BLOCK);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum += quad_sum(v[u]);
    }
    for (; c < quads; c += BLOCK) sum += quad_sum(in[c]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

__global__ void row_sum_any(const float* x, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c];
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

void launch(const float* x, float* y, int rows, int cols) {
    if (cols % 4 == 0) {
        row_sum_quads<<<rows, BLOCK>>>(reinterpret_cast<const float4*>(x), y, cols / 4);
    } else {
        row_sum_any<<<rows, BLOCK>>>(x, y, cols);
    }
}
