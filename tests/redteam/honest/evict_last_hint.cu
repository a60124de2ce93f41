// task: row_sum
// Asks with a cache hint that its input stay in L2, which a flush undoes.
#include <cuda_runtime.h>
__global__ void sums(const float* x, float* y, int cols) {
    float sum = 0;
    unsigned long long keep;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    for (int c = threadIdx.x; c < cols; c += 32) {
        float v;
        asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(x + (size_t)blockIdx.x * cols + c), "l"(keep));
        sum += v;
    }
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
void launch(const float* x, float* y, int rows, int cols) { sums<<<rows, 32>>>(x, y, cols); }
