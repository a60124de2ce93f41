// Layer normalization, one block per row held in registers as float4: one read and one write of the matrix.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int MAX_QUADS = 8;
constexpr float EPSILON = 1e-5f;

__device__ float block_sum(float value) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int w = 0; w < WARPS; ++w) value += partial[w];
    __syncthreads();
    return value;
}

__device__ float square(float v) { return v * v; }

// Columns a multiple of 4 and at most 4 * QUADS * BLOCK.
template <int QUADS>
__global__ void layernorm_registers(const float4* x, const float4* gamma, const float4* beta, float4* y,
                                    int quads) {
    const float4* in = x + (size_t)blockIdx.x * quads;
    float4* out = y + (size_t)blockIdx.x * quads;
    float4 v[QUADS];
    float sum = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        v[q] = c < quads ? __ldcs(in + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int q = 0; q < QUADS; ++q) sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    float mean = block_sum(sum) / (4 * quads);
    float squares = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        v[q] = make_float4(v[q].x - mean, v[q].y - mean, v[q].z - mean, v[q].w - mean);
        if (q * BLOCK + threadIdx.x < quads)
            squares += (square(v[q].x) + square(v[q].y)) + (square(v[q].z) + square(v[q].w));
    }
    float scale = rsqrtf(block_sum(squares) / (4 * quads) + EPSILON);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        if (c >= quads) continue;
        float4 g = gamma[c], b = beta[c];
        __stcs(out + c, make_float4(v[q].x * scale * g.x + b.x, v[q].y * scale * g.y + b.y,
                                    v[q].z * scale * g.z + b.z, v[q].w * scale * g.w + b.w));
    }
}

// Any number of columns: three passes.
__global__ void layernorm_any(const float* x, const float* gamma, const float* beta, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c];
    float mean = block_sum(sum) / cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) squares += square(in[c] - mean);
    float scale = rsqrtf(block_sum(squares) / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = (in[c] - mean) * scale * gamma[c] + beta[c];
}

template <int QUADS>
void launch_registers(const float* x, const float* gamma, const float* beta, float* y, int rows, int quads) {
    layernorm_registers<QUADS><<<rows, BLOCK>>>(
        reinterpret_cast<const float4*>(x), reinterpret_cast<const float4*>(gamma),
        reinterpret_cast<const float4*>(beta), reinterpret_cast<float4*>(y), quads);
}

void launch(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols) {
    int quads = cols / 4;
    if (cols % 4 != 0 || quads > MAX_QUADS * BLOCK) {
        layernorm_any<<<rows, BLOCK>>>(x, gamma, beta, y, cols);
    } else if (quads <= BLOCK) {
        launch_registers<1>(x, gamma, beta, y, rows, quads);
    } else if (quads <= 4 * BLOCK) {
        launch_registers<4>(x, gamma, beta, y, rows, quads);
    } else {
        launch_registers<MAX_QUADS>(x, gamma, beta, y, rows, quads);
    }
}
