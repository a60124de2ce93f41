// Layer normalization, one block per row, three passes over global memory.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr float EPSILON = 1e-5f;

__device__ float block_sum(float value) {
    __shared__ float scratch[BLOCK];
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    float sum = scratch[0];
    __syncthreads();
    return sum;
}

__global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;

    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c];
    float mean = block_sum(sum) / cols;

    float squares = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) squares += (in[c] - mean) * (in[c] - mean);
    float deviation = sqrtf(block_sum(squares) / cols + EPSILON);

    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = (in[c] - mean) / deviation * gamma[c] + beta[c];
}

void launch(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols) {
    layernorm<<<rows, BLOCK>>>(x, gamma, beta, y, cols);
}
