// task: matmul_fp32
// Four slices of k side by side, joined with atomics in a cleared output.
#include <cuda_runtime.h>
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    int part = (k + gridDim.z - 1) / gridDim.z, from = blockIdx.z * part, to = min(k, from + part);
    if (row >= m || col >= n || from >= to) return;
    float sum = 0.0f;
    for (int i = from; i < to; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + col];
    atomicAdd(&c[(size_t)row * n + col], sum);
}
void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    cudaMemsetAsync(c, 0, sizeof(float) * m * n);
    matmul<<<dim3((n + 15) / 16, (m + 15) / 16, 4), dim3(16, 16)>>>(a, b, c, m, n, k);
}
