// RMS normalization of float16 rows, one block per row, two passes over global memory.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr float EPSILON = 1e-6f;

__global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int cols) {
    __shared__ float scratch[BLOCK];
    const __half* in = x + (size_t)blockIdx.x * cols;
    __half* out = y + (size_t)blockIdx.x * cols;

    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        float v = __half2float(in[c]);
        squares += v * v;
    }
    scratch[threadIdx.x] = squares;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    float scale = 1.0f / sqrtf(scratch[0] / cols + EPSILON);

    for (int c = threadIdx.x; c < cols; c += BLOCK)
        out[c] = __float2half(__half2float(in[c]) * scale * __half2float(weight[c]));
}

void launch(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    rmsnorm<<<rows, BLOCK>>>(x, weight, y, cols);
}
