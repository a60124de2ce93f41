// expect: WRONG
// Sums the squares in float16: the sum overflows or stops growing once a square is below its last bit.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr float EPSILON = 1e-6f;

__global__ void rmsnorm(const __half* x, const __half* weight, __half* y, int cols) {
    __shared__ __half scratch[BLOCK];
    const __half* in = x + (size_t)blockIdx.x * cols;
    __half* out = y + (size_t)blockIdx.x * cols;
    __half squares = __float2half(0.0f);
    for (int c = threadIdx.x; c < cols; c += BLOCK) squares = __hfma(in[c], in[c], squares);
    scratch[threadIdx.x] = squares;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step)
            scratch[threadIdx.x] = __hadd(scratch[threadIdx.x], scratch[threadIdx.x + step]);
        __syncthreads();
    }
    float scale = rsqrtf(__half2float(scratch[0]) / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK)
        out[c] = __float2half(__half2float(in[c]) * scale * __half2float(weight[c]));
}

void launch(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    rmsnorm<<<rows, BLOCK>>>(x, weight, y, cols);
}
