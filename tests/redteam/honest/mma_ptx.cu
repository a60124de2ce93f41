// task: matmul_fp16
// Tensor cores by mma.sync in PTX, operands gathered straight from global memory.
#include <cuda_runtime.h>
#include <cuda_fp16.h>
__device__ unsigned pair(__half low, __half high) {
    __half2 both = __halves2half2(low, high);
    return *reinterpret_cast<unsigned*>(&both);
}
__global__ void matmul(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    int row = blockIdx.y * 16, col = blockIdx.x * 8, group = threadIdx.x / 4, lane = threadIdx.x % 4;
    auto at_a = [&](int r, int q) { return r < m && q < k ? a[(size_t)r * k + q] : __float2half(0.0f); };
    auto at_b = [&](int r, int q) { return r < k && q < n ? b[(size_t)r * n + q] : __float2half(0.0f); };
    float d[4] = {0, 0, 0, 0};
    for (int at = 0; at < k; at += 16) {
        int q = at + lane * 2;
        unsigned a0 = pair(at_a(row + group, q), at_a(row + group, q + 1));
        unsigned a1 = pair(at_a(row + group + 8, q), at_a(row + group + 8, q + 1));
        unsigned a2 = pair(at_a(row + group, q + 8), at_a(row + group, q + 9));
        unsigned a3 = pair(at_a(row + group + 8, q + 8), at_a(row + group + 8, q + 9));
        unsigned b0 = pair(at_b(q, col + group), at_b(q + 1, col + group));
        unsigned b1 = pair(at_b(q + 8, col + group), at_b(q + 9, col + group));
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    for (int i = 0; i < 4; i++) {
        int r = row + group + i / 2 * 8, q = col + lane * 2 + i % 2;
        if (r < m && q < n) c[(size_t)r * n + q] = __float2half(d[i]);
    }
}
void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    matmul<<<dim3((n + 7) / 8, (m + 15) / 16), 32>>>(a, b, c, m, n, k);
}
