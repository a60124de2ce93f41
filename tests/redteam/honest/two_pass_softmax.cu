// task: softmax
// Online maximum and sum in one pass, then the result.
#include <cuda_runtime.h>
#include <math.h>
__global__ void rows_kernel(const float* x, float* y, int cols) {
    const float* in = x + (size_t)blockIdx.x * cols;
    float top = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < cols; c += 32) {
        float v = in[c];
        if (v > top) {
            sum = sum * expf(top - v) + 1.0f;
            top = v;
        } else {
            sum += expf(v - top);
        }
    }
    for (int s = 16; s > 0; s /= 2) {
        float other = __shfl_xor_sync(~0u, top, s), more = __shfl_xor_sync(~0u, sum, s);
        float high = fmaxf(top, other);
        sum = (top > -INFINITY ? sum * expf(top - high) : 0.0f) + (other > -INFINITY ? more * expf(other - high) : 0.0f);
        top = high;
    }
    for (int c = threadIdx.x; c < cols; c += 32) y[(size_t)blockIdx.x * cols + c] = expf(in[c] - top) / sum;
}
void launch(const float* x, float* y, int rows, int cols) { rows_kernel<<<rows, 32>>>(x, y, cols); }
