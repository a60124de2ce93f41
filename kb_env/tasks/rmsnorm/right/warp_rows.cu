// RMS normalization, one warp per row, float16 pairs where the row allows; the second pass reads from cache.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 128;
constexpr int ROWS_PER_BLOCK = BLOCK / 32;
constexpr float EPSILON = 1e-6f;

__device__ float warp_sum(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

__global__ void rmsnorm_warps(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    int row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const __half* in = x + (size_t)row * cols;
    __half* out = y + (size_t)row * cols;
    float squares = 0.0f;
    if (cols % 2 == 0) {
        const __half2* pairs = reinterpret_cast<const __half2*>(in);
        const __half2* weights = reinterpret_cast<const __half2*>(weight);
        for (int c = lane; c < cols / 2; c += 32) {
            float2 v = __half22float2(pairs[c]);
            squares += v.x * v.x + v.y * v.y;
        }
        float scale = rsqrtf(warp_sum(squares) / cols + EPSILON);
        for (int c = lane; c < cols / 2; c += 32) {
            float2 v = __half22float2(pairs[c]), w = __half22float2(weights[c]);
            reinterpret_cast<__half2*>(out)[c] = __floats2half2_rn(v.x * scale * w.x, v.y * scale * w.y);
        }
        return;
    }
    for (int c = lane; c < cols; c += 32) squares += __half2float(in[c]) * __half2float(in[c]);
    float scale = rsqrtf(warp_sum(squares) / cols + EPSILON);
    for (int c = lane; c < cols; c += 32)
        out[c] = __float2half(__half2float(in[c]) * scale * __half2float(weight[c]));
}

void launch(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    int blocks = (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK;
    rmsnorm_warps<<<blocks, BLOCK>>>(x, weight, y, rows, cols);
}
