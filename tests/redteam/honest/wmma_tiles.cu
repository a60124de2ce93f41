// task: matmul_fp16
// Tensor cores by the wmma interface, ragged edges padded in shared memory.
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
__global__ void matmul(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    __shared__ __half as[256], bs[256];
    __shared__ float cs[256];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    int row = blockIdx.y * 16, col = blockIdx.x * 16;
    for (int at = 0; at < k; at += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            int r = i / 16, q = i % 16;
            as[i] = row + r < m && at + q < k ? a[(size_t)(row + r) * k + at + q] : __float2half(0.0f);
            bs[i] = at + r < k && col + q < n ? b[(size_t)(at + r) * n + col + q] : __float2half(0.0f);
        }
        __syncwarp();
        wmma::load_matrix_sync(fa, as, 16);
        wmma::load_matrix_sync(fb, bs, 16);
        wmma::mma_sync(fc, fa, fb, fc);
        __syncwarp();
    }
    wmma::store_matrix_sync(cs, fc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x; i < 256; i += 32)
        if (row + i / 16 < m && col + i % 16 < n) c[(size_t)(row + i / 16) * n + col + i % 16] = __float2half(cs[i]);
}
void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    matmul<<<dim3((n + 15) / 16, (m + 15) / 16), 32>>>(a, b, c, m, n, k);
}
