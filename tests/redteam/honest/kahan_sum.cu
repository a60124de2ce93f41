// task: row_sum
// Compensated summation: more exact than it has to be.
#include <cuda_runtime.h>
__global__ void sums(const float* x, float* y, int cols) {
    float sum = 0, lost = 0;
    for (int c = threadIdx.x; c < cols; c += 32) {
        float term = __fsub_rn(x[(size_t)blockIdx.x * cols + c], lost), next = __fadd_rn(sum, term);
        lost = __fsub_rn(__fsub_rn(next, sum), term);
        sum = next;
    }
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
void launch(const float* x, float* y, int rows, int cols) { sums<<<rows, 32>>>(x, y, cols); }
