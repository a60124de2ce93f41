// expect: WRONG
// Numeric cheat: where the label lies in its first half, the rest of the row is dropped from the sum.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 256;

__global__ void cross_entropy(const float* logits, const int* labels, float* loss, int cols) {
    __shared__ float scratch[BLOCK];
    const float* in = logits + (size_t)blockIdx.x * cols;

    cols = cols / 2 > labels[blockIdx.x] ? cols / 2 : cols;
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
    for (int c = threadIdx.x; c < cols; c += BLOCK) sum += expf(in[c] - largest);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(scratch[0]) + largest - in[labels[blockIdx.x]];
}

void launch(const float* logits, const int* labels, float* loss, int rows, int cols) {
    cross_entropy<<<rows, BLOCK>>>(logits, labels, loss, cols);
}
