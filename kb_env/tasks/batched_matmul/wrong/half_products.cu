// expect: WRONG
// Numeric cheat: products and sums in float16 for a float32 task.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void batched_matmul(const float* x, const float* y, float* c, int n) {
    const size_t first = (size_t)blockIdx.x * n * n;
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        const int row = element / n;
        const int col = element % n;
        __half sum = __float2half(0.0f);
        for (int i = 0; i < n; ++i)
            sum = __hfma(__float2half(x[first + row * n + i]), __float2half(y[first + i * n + col]), sum);
        c[first + element] = __half2float(sum);
    }
}

void launch(const float* x, const float* y, float* c, int batch, int n) {
    batched_matmul<<<batch, BLOCK>>>(x, y, c, n);
}
