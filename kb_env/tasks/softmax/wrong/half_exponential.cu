// expect: WRONG
// Keeps the exponentials in float16: three decimal digits instead of seven.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;

__global__ void softmax_rows(const float* x, float* y, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    float largest = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += BLOCK) largest = fmaxf(largest, in[c]);
    scratch[threadIdx.x] = largest;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] = fmaxf(scratch[threadIdx.x], scratch[threadIdx.x + step]);
        __syncthreads();
    }
    largest = scratch[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += __half2float(__float2half(expf(in[c] - largest)));
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    sum = scratch[0];
    for (int c = threadIdx.x; c < cols; c += BLOCK)
        out[c] = __half2float(__float2half(expf(in[c] - largest))) / sum;
}

void launch(const float* x, float* y, int rows, int cols) {
    softmax_rows<<<rows, BLOCK>>>(x, y, cols);
}
