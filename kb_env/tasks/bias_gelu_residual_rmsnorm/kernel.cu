// Bias, GELU, residual, RMS norm: four kernels in a chain, intermediate results in two workspaces.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;
constexpr float EPSILON = 1e-5f;

__global__ void add_bias(const float* x, const float* bias, float* out, int cols, size_t total) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < total) out[i] = x[i] + bias[i % cols];
}

__global__ void gelu(const float* x, float* out, size_t total) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < total) out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

__global__ void add(const float* x, const float* residual, float* out, size_t total) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i < total) out[i] = x[i] + residual[i];
}

__global__ void rmsnorm(const float* x, const float* weight, float* y, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += in[c] * in[c];
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    const float scale = 1.0f / sqrtf(scratch[0] / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK) out[c] = weight[c] * in[c] * scale;
}

void launch(const float* x, const float* bias, const float* residual, const float* weight, float* y, int rows,
            int cols) {
    const size_t total = (size_t)rows * cols;
    const int grid = (total + BLOCK - 1) / BLOCK;
    float *first, *second;
    cudaMalloc(&first, total * sizeof(float));
    cudaMalloc(&second, total * sizeof(float));
    add_bias<<<grid, BLOCK>>>(x, bias, first, cols, total);
    gelu<<<grid, BLOCK>>>(first, second, total);
    add<<<grid, BLOCK>>>(second, residual, first, total);
    rmsnorm<<<rows, BLOCK>>>(first, weight, y, cols);
    cudaFree(first);
    cudaFree(second);
}
