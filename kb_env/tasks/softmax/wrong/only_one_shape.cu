// expect: WRONG
// Works for 4096 columns alone and leaves every other matrix as it finds it.
#include <cuda_runtime.h>
#include <math.h>

constexpr int COLS = 4096;
constexpr int BLOCK = 256;

__global__ void softmax_rows(const float* x, float* y, int cols) {
    if (cols != COLS) return;
    __shared__ float scratch[BLOCK];
    const float* in = x + (size_t)blockIdx.x * COLS;
    float* out = y + (size_t)blockIdx.x * COLS;
    float v[COLS / BLOCK];
    float largest = -INFINITY, sum = 0.0f;
    for (int i = 0; i < COLS / BLOCK; ++i) {
        v[i] = in[i * BLOCK + threadIdx.x];
        largest = fmaxf(largest, v[i]);
    }
    scratch[threadIdx.x] = largest;
    __syncthreads();
    for (int i = 0; i < BLOCK; ++i) largest = fmaxf(largest, scratch[i]);
    __syncthreads();
    for (int i = 0; i < COLS / BLOCK; ++i) sum += v[i] = expf(v[i] - largest);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < BLOCK; ++i) sum += scratch[i];
    for (int i = 0; i < COLS / BLOCK; ++i) out[i * BLOCK + threadIdx.x] = v[i] / sum;
}

void launch(const float* x, float* y, int rows, int cols) {
    softmax_rows<<<rows, BLOCK>>>(x, y, cols);
}
