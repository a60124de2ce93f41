// Row softmax, one warp per row, maximum and sum in one pass: the sum is rescaled when the maximum grows.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 128;
constexpr int ROWS_PER_BLOCK = BLOCK / 32;

__global__ void softmax_online(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* in = x + (size_t)row * cols;
    float* out = y + (size_t)row * cols;

    float largest = -INFINITY, sum = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        float v = in[c];
        if (v > largest) {
            sum *= expf(largest - v);
            largest = v;
        }
        sum += expf(v - largest);
    }
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffff, largest, step);
        float other_sum = __shfl_xor_sync(0xffffffff, sum, step);
        float both = fmaxf(largest, other);
        // A lane that saw no column has -inf and 0: it must not turn the sum into NaN.
        sum = (sum > 0.0f ? sum * expf(largest - both) : 0.0f) +
              (other_sum > 0.0f ? other_sum * expf(other - both) : 0.0f);
        largest = both;
    }
    float scale = 1.0f / sum;
    for (int c = lane; c < cols; c += 32) out[c] = expf(in[c] - largest) * scale;
}

void launch(const float* x, float* y, int rows, int cols) {
    softmax_online<<<(rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, BLOCK>>>(x, y, rows, cols);
}
