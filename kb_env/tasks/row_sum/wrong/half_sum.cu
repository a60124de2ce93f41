// expect: WRONG
// Keeps the running sum in float16.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void row_sum(const float* x, float* y, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * cols;
    __half sum = __float2half(0.0f);
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum = __hadd(sum, __float2half(in[c]));
    scratch[threadIdx.x] = __half2float(sum);
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = scratch[0];
}

void launch(const float* x, float* y, int rows, int cols) {
    row_sum<<<rows, BLOCK>>>(x, y, cols);
}
