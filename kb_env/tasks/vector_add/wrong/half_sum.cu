// expect: WRONG
// Adds in float16: less arithmetic precision than the task's float32.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) c[i] = __half2float(__hadd(__float2half(a[i]), __float2half(b[i])));
}

void launch(const float* a, const float* b, float* c, int n) {
    add<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(a, b, c, n);
}
