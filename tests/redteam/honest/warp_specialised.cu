// task: matmul_fp32
// One warp of each block loads tiles, the others multiply; they meet at named barriers.
#include <cuda_runtime.h>
__device__ void meet(int id) { asm volatile("bar.sync %0, 288;" ::"r"(id) : "memory"); }
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[2][16][16], bs[2][16][16];
    int row0 = blockIdx.y * 16, col0 = blockIdx.x * 16, tiles = (k + 15) / 16;
    bool loads = threadIdx.x >= 256;
    float sum = 0.0f;
    for (int t = 0; t <= tiles; t++) {
        if (loads && t < tiles) {
            for (int i = threadIdx.x - 256; i < 256; i += 32) {
                int r = i / 16, q = i % 16;
                as[t % 2][r][q] = row0 + r < m && t * 16 + q < k ? a[(size_t)(row0 + r) * k + t * 16 + q] : 0.0f;
                bs[t % 2][r][q] = t * 16 + r < k && col0 + q < n ? b[(size_t)(t * 16 + r) * n + col0 + q] : 0.0f;
            }
        }
        if (!loads && t > 0)
            for (int j = 0; j < 16; j++) sum += as[(t - 1) % 2][threadIdx.x / 16][j] * bs[(t - 1) % 2][j][threadIdx.x % 16];
        meet(1);
    }
    if (loads) return;
    int r = row0 + threadIdx.x / 16, q = col0 + threadIdx.x % 16;
    if (r < m && q < n) c[(size_t)r * n + q] = sum;
}
void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    matmul<<<dim3((n + 15) / 16, (m + 15) / 16), 288>>>(a, b, c, m, n, k);
}
