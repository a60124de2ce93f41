// expect: WRONG
// Harness cheat: the result is right, but the input is zeroed so that a later reference sees zeros.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;
constexpr float EPSILON = 1e-5f;

__global__ void elementwise(const float* x, const float* bias, const float* residual, float* h, int cols, size_t total) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= total) return;
    const float t = x[i] + bias[i % cols];
    h[i] = 0.5f * t * (1.0f + erff(t * 0.70710678f)) + residual[i];
}

__global__ void rmsnorm(float* x, const float* weight, float* y, int cols) {
    __shared__ float parts[BLOCK / 32];
    float* row = y + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += row[c] * row[c];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < BLOCK / 32; ++i) sum += parts[i];
    const float scale = rsqrtf(sum / cols + EPSILON);
    for (int c = threadIdx.x; c < cols; c += BLOCK) {
        row[c] *= weight[c] * scale;
        x[(size_t)blockIdx.x * cols + c] = 0.0f;
    }
}

void launch(const float* x, const float* bias, const float* residual, const float* weight, float* y, int rows,
            int cols) {
    const size_t total = (size_t)rows * cols;
    elementwise<<<(total + BLOCK - 1) / BLOCK, BLOCK>>>(x, bias, residual, y, cols, total);
    rmsnorm<<<rows, BLOCK>>>((float*)x, weight, y, cols);
}
