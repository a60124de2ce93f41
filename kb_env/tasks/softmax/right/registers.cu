// Row softmax, one block per row held in registers: one read and one write of the matrix.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int MAX_QUADS = 8;

template <typename Combine>
__device__ float reduce(float value, Combine combine) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(0xffffffff, value, step));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (int w = 1; w < WARPS; ++w) value = combine(value, partial[w]);
    __syncthreads();
    return value;
}

struct Largest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
};

// Columns a multiple of 4 and at most 4 * QUADS * BLOCK.
template <int QUADS>
__global__ void softmax_registers(const float4* x, float4* y, int quads) {
    const float4* in = x + (size_t)blockIdx.x * quads;
    float4* out = y + (size_t)blockIdx.x * quads;
    float4 v[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        v[q] = c < quads ? __ldcs(in + c) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    }
    float largest = -INFINITY;
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
        largest = fmaxf(largest, fmaxf(fmaxf(v[q].x, v[q].y), fmaxf(v[q].z, v[q].w)));
    largest = reduce(largest, Largest());
    float sum = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        v[q] = make_float4(expf(v[q].x - largest), expf(v[q].y - largest), expf(v[q].z - largest),
                           expf(v[q].w - largest));
        sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    }
    float scale = 1.0f / reduce(sum, Sum());
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        if (c < quads)
            __stcs(out + c, make_float4(v[q].x * scale, v[q].y * scale, v[q].z * scale, v[q].w * scale));
    }
}

// Any number of columns: three passes.
__global__ void softmax_any(const float* x, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    float largest = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += BLOCK) largest = fmaxf(largest, in[c]);
    largest = reduce(largest, Largest());
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += expf(in[c] - largest);
    sum = reduce(sum, Sum());
    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = expf(in[c] - largest) / sum;
}

void launch(const float* x, float* y, int rows, int cols) {
    const float4* in = reinterpret_cast<const float4*>(x);
    float4* out = reinterpret_cast<float4*>(y);
    int quads = cols / 4;
    if (cols % 4 != 0 || quads > MAX_QUADS * BLOCK) {
        softmax_any<<<rows, BLOCK>>>(x, y, cols);
    } else if (quads <= BLOCK) {
        softmax_registers<1><<<rows, BLOCK>>>(in, out, quads);
    } else if (quads <= 4 * BLOCK) {
        softmax_registers<4><<<rows, BLOCK>>>(in, out, quads);
    } else {
        softmax_registers<MAX_QUADS><<<rows, BLOCK>>>(in, out, quads);
    }
}
