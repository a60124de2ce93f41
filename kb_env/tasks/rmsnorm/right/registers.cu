// RMS normalization, one block per row held in registers, eight float16 per load: one read, one write.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int MAX_PACKS = 4;
constexpr float EPSILON = 1e-6f;

union Pack {
    uint4 bits;
    __half2 pair[4];
};

__device__ float block_sum(float value) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int w = 0; w < WARPS; ++w) value += partial[w];
    return value;
}

// Columns a multiple of 8 and at most 8 * PACKS * BLOCK.
template <int PACKS>
__global__ void rmsnorm_registers(const uint4* x, const uint4* weight, uint4* y, int packs) {
    const uint4* in = x + (size_t)blockIdx.x * packs;
    uint4* out = y + (size_t)blockIdx.x * packs;
    Pack v[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        int c = p * BLOCK + threadIdx.x;
        v[p].bits = c < packs ? __ldcs(in + c) : make_uint4(0, 0, 0, 0);
    }
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            float2 f = __half22float2(v[p].pair[k]);
            squares += f.x * f.x + f.y * f.y;
        }
    float scale = rsqrtf(block_sum(squares) / (8 * packs) + EPSILON);
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        int c = p * BLOCK + threadIdx.x;
        if (c >= packs) continue;
        Pack w;
        w.bits = weight[c];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            float2 f = __half22float2(v[p].pair[k]), g = __half22float2(w.pair[k]);
            v[p].pair[k] = __floats2half2_rn(f.x * scale * g.x, f.y * scale * g.y);
        }
        __stcs(out + c, v[p].bits);
    }
}

// Any number of columns: two passes.
__global__ void rmsnorm_any(const __half* x, const __half* weight, __half* y, int cols) {
    const __half* in = x + (size_t)blockIdx.x * cols;
    __half* out = y + (size_t)blockIdx.x * cols;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        float v = __half2float(in[c]);
        squares += v * v;
    }
    float scale = rsqrtf(block_sum(squares) / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK)
        out[c] = __float2half(__half2float(in[c]) * scale * __half2float(weight[c]));
}

void launch(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    const uint4* in = reinterpret_cast<const uint4*>(x);
    const uint4* w = reinterpret_cast<const uint4*>(weight);
    uint4* out = reinterpret_cast<uint4*>(y);
    int packs = cols / 8;
    if (cols % 8 != 0 || packs > MAX_PACKS * BLOCK) {
        rmsnorm_any<<<rows, BLOCK>>>(x, weight, y, cols);
    } else if (packs <= BLOCK) {
        rmsnorm_registers<1><<<rows, BLOCK>>>(in, w, out, packs);
    } else if (packs <= 2 * BLOCK) {
        rmsnorm_registers<2><<<rows, BLOCK>>>(in, w, out, packs);
    } else {
        rmsnorm_registers<MAX_PACKS><<<rows, BLOCK>>>(in, w, out, packs);
    }
}
