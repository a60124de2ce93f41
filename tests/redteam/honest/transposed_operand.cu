// task: matmul_fp32
// Transposes b into workspace first, so that both operands are read along k.
#include <cuda_runtime.h>
__global__ void turn(const float* b, float* t, int k, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < k * n) t[(size_t)(i % n) * k + i / n] = b[i];
}
__global__ void matmul(const float* a, const float* t, float* c, int m, int n, int k) {
    __shared__ float as[16][17], ts[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x, other = blockIdx.x * 16 + threadIdx.y;
    float sum = 0.0f;
    for (int at = 0; at < k; at += 16) {
        int i = at + threadIdx.x;
        as[threadIdx.y][threadIdx.x] = row < m && i < k ? a[(size_t)row * k + i] : 0.0f;
        ts[threadIdx.y][threadIdx.x] = other < n && i < k ? t[(size_t)other * k + i] : 0.0f;
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += as[threadIdx.y][j] * ts[threadIdx.x][j];
        __syncthreads();
    }
    if (row < m && col < n) c[(size_t)row * n + col] = sum;
}
void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    float* t;
    cudaMalloc(&t, sizeof(float) * k * n);
    turn<<<(k * n + 255) / 256, 256>>>(b, t, k, n);
    matmul<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, t, c, m, n, k);
    cudaFree(t);
}
