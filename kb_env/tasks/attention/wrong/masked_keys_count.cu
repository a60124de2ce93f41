// expect: WRONG
// A plausible bug: keys past the end are read as zeros and enter the sum with weight exp(0 - maximum).
#include <cuda_runtime.h>
#include <math.h>

constexpr int DIM = 64;
constexpr int KEYS = 32;
constexpr int WARPS = 8;

__global__ void __launch_bounds__(32 * WARPS)
attention(const float* q, const float* k, const float* v, float* y, int seq) {
    __shared__ float queries[WARPS][DIM];
    __shared__ float keys[KEYS][DIM + 1];
    __shared__ float values[KEYS][DIM];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t head = blockIdx.y;
    const int query = blockIdx.x * WARPS + warp;
    const size_t base = head * seq * DIM;
    for (int i = lane; i < DIM; i += 32) queries[warp][i] = query < seq ? q[base + query * DIM + i] * 0.125f : 0.0f;
    float largest = -INFINITY, sum = 0.0f, y0 = 0.0f, y1 = 0.0f;
    for (int first = 0; first < seq; first += KEYS) {
        __syncthreads();
        for (int item = threadIdx.x; item < KEYS * DIM; item += 32 * WARPS) {
            const int key = item / DIM, i = item % DIM;
            const bool valid = first + key < seq;
            keys[key][i] = valid ? k[base + (first + key) * DIM + i] : 0.0f;
            values[key][i] = valid ? v[base + (first + key) * DIM + i] : 0.0f;
        }
        __syncthreads();
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < DIM; ++i) score += queries[warp][i] * keys[lane][i];
        float top = score;
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        const float now = fmaxf(largest, top);
        const float keep = expf(largest - now);
        const float weight = expf(score - now);
        float total = weight;
        for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
        sum = sum * keep + total;
        largest = now;
        y0 *= keep;
        y1 *= keep;
#pragma unroll
        for (int key = 0; key < KEYS; ++key) {
            const float p = __shfl_sync(0xffffffffu, weight, key);
            y0 += p * values[key][lane];
            y1 += p * values[key][lane + 32];
        }
    }
    if (query < seq) {
        y[base + query * DIM + lane] = y0 / sum;
        y[base + query * DIM + lane + 32] = y1 / sum;
    }
}

void launch(const float* q, const float* k, const float* v, float* y, int heads, int seq) {
    attention<<<dim3((seq + WARPS - 1) / WARPS, heads), 32 * WARPS>>>(q, k, v, y, seq);
}
