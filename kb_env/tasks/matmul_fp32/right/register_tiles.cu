// Matrix product, 128 x 128 block tiles, 8 x 8 elements of c in each thread's registers, two shared
// buffers; the next tile travels through registers while the present one is multiplied.
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 8;
constexpr int THREADS = 256;
constexpr int PAD = 4;  // spreads the transposed stores of a over the banks

__device__ float at(const float* x, int row, int col, int rows, int cols) {
    return row < rows && col < cols ? x[(size_t)row * cols + col] : 0.0f;
}

__global__ void __launch_bounds__(THREADS, 2)
matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ __align__(16) float a_tile[2][BK][BM + PAD];
    __shared__ __align__(16) float b_tile[2][BK][BN];
    const int tid = threadIdx.x;
    const int first_row = blockIdx.y * BM;
    const int first_col = blockIdx.x * BN;
    const int a_row = tid / 2, a_k = tid % 2 * 4;
    const int b_k = tid / 32, b_col = tid % 32;
    const int row0 = tid / 16 * 4;  // rows row0.. and row0 + 64..
    const int col0 = tid % 16 * 4;  // columns col0.. and col0 + 64..

    float acc[8][8] = {};
    float a_next[4], b_next[4];
    auto fetch = [&](int start) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a_next[i] = at(a, first_row + a_row, start + a_k + i, m, k);
            b_next[i] = at(b, start + b_k, first_col + b_col + 32 * i, k, n);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            a_tile[buffer][a_k + i][a_row] = a_next[i];
            b_tile[buffer][b_k][b_col + 32 * i] = b_next[i];
        }
    };

    fetch(0);
    put(0);
    __syncthreads();
    int buffer = 0;
    for (int start = 0; start < k; start += BK) {
        if (start + BK < k) fetch(start + BK);
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float x[8], y[8];
            *(float4*)(x) = *(const float4*)&a_tile[buffer][i][row0];
            *(float4*)(x + 4) = *(const float4*)&a_tile[buffer][i][row0 + 64];
            *(float4*)(y) = *(const float4*)&b_tile[buffer][i][col0];
            *(float4*)(y + 4) = *(const float4*)&b_tile[buffer][i][col0 + 64];
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int s = 0; s < 8; ++s) acc[r][s] += x[r] * y[s];
        }
        buffer ^= 1;
        if (start + BK < k) put(buffer);
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int row = first_row + row0 + r % 4 + r / 4 * 64;
        if (row >= m) continue;
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            const int col = first_col + col0 + s % 4 + s / 4 * 64;
            if (col < n) c[(size_t)row * n + col] = acc[r][s];
        }
    }
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 grid((n + BN - 1) / BN, (m + BM - 1) / BM);
    matmul<<<grid, THREADS>>>(a, b, c, m, n, k);
}
