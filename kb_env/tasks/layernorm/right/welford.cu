// Layer normalization, one warp per row: mean and variance in one pass by Welford's update, merged over lanes.
#include <cuda_runtime.h>

constexpr int BLOCK = 128;
constexpr int ROWS_PER_BLOCK = BLOCK / 32;
constexpr float EPSILON = 1e-5f;

__global__ void layernorm_welford(const float* x, const float* gamma, const float* beta, float* y, int rows,
                                  int cols) {
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* in = x + (size_t)row * cols;
    float* out = y + (size_t)row * cols;

    float count = 0.0f, mean = 0.0f, squares = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        float v = in[c];
        count += 1.0f;
        float before = v - mean;
        mean += before / count;
        squares += before * (v - mean);
    }
    // Chan's merge of two groups' counts, means and sums of squared deviations.
    for (int step = 16; step > 0; step /= 2) {
        float other_count = __shfl_xor_sync(0xffffffff, count, step);
        float other_mean = __shfl_xor_sync(0xffffffff, mean, step);
        float other_squares = __shfl_xor_sync(0xffffffff, squares, step);
        float both = count + other_count;
        if (both > 0.0f) {
            float apart = other_mean - mean;
            squares += other_squares + apart * apart * (count * other_count / both);
            mean = (mean * count + other_mean * other_count) / both;
            count = both;
        }
    }
    float scale = rsqrtf(squares / cols + EPSILON);
    // Lanes merge in mirrored order and may differ in the last bit: all take lane 0's figures.
    mean = __shfl_sync(0xffffffff, mean, 0);
    scale = __shfl_sync(0xffffffff, scale, 0);
    for (int c = lane; c < cols; c += 32) out[c] = (in[c] - mean) * scale * gamma[c] + beta[c];
}

void launch(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols) {
    int blocks = (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK;
    layernorm_welford<<<blocks, BLOCK>>>(x, gamma, beta, y, rows, cols);
}
