// Matrix product, 128 x 128 block tiles, 8 x 8 elements of c in each thread's registers, four shared
// buffers filled by asynchronous copies (a is transposed on the way).
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 8;
constexpr int STAGES = 4;
constexpr int THREADS = 256;
constexpr int PAD = 4;  // spreads the transposed stores of a over the banks

// Copies BYTES from global to shared memory without waiting; zeros where `valid` is false.
template <int BYTES>
__device__ void copy_async(float* target, const float* source, bool valid) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = valid ? BYTES : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(source), "n"(BYTES), "r"(bytes)
                 : "memory");
}

// VECTOR: rows of b and c start at multiples of 16 bytes.
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS, 2)
matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
    __shared__ __align__(16) float a_tile[STAGES][BK][BM + PAD];
    __shared__ __align__(16) float b_tile[STAGES][BK][BN];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int first_row = blockIdx.y * BM;
    const int first_col = blockIdx.x * BN;
    // 4 x 2 warps of 32 x 64 elements; lanes in pairs so that wide shared loads broadcast.
    const int row0 = warp / 2 * 32 + ((lane & 1) + lane / 16 * 2) * 4;  // and row0 + 16
    const int col0 = warp % 2 * 64 + (lane / 2 % 8) * 4;                // and col0 + 32

    auto load = [&](int tile) {
        const int start = tile * BK, slot = tile % STAGES;
        const int a_k = start + tid % 8;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = tid / 8 + 32 * i;
            const bool valid = a_k < k && first_row + row < m;
            copy_async<4>(&a_tile[slot][tid % 8][row], valid ? a + (size_t)(first_row + row) * k + a_k : a, valid);
        }
        if (VECTOR) {
            const int row = tid / 32, col = tid % 32 * 4;
            const bool valid = start + row < k && first_col + col < n;
            copy_async<16>(&b_tile[slot][row][col], valid ? b + (size_t)(start + row) * n + first_col + col : b, valid);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = tid / 128 + 2 * i, col = tid % 128;
                const bool valid = start + row < k && first_col + col < n;
                copy_async<4>(&b_tile[slot][row][col], valid ? b + (size_t)(start + row) * n + first_col + col : b,
                              valid);
            }
        }
    };

    const int tiles = (k + BK - 1) / BK;
#pragma unroll
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < tiles) load(tile);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    float acc[8][8] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (tile + STAGES - 1 < tiles) load(tile + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const int slot = tile % STAGES;
#pragma unroll
        for (int i = 0; i < BK; ++i) {
            float x[8], y[8];
            *(float4*)(x) = *(const float4*)&a_tile[slot][i][row0];
            *(float4*)(x + 4) = *(const float4*)&a_tile[slot][i][row0 + 16];
            *(float4*)(y) = *(const float4*)&b_tile[slot][i][col0];
            *(float4*)(y + 4) = *(const float4*)&b_tile[slot][i][col0 + 32];
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int s = 0; s < 8; ++s) acc[r][s] += x[r] * y[s];
        }
    }

#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int row = first_row + row0 + r % 4 + r / 4 * 16;
        if (row >= m) continue;
#pragma unroll
        for (int s = 0; s < 8; s += 4) {
            const int col = first_col + col0 + s * 8;
            float* out = c + (size_t)row * n + col;
            if (VECTOR) {
                if (col < n) *(float4*)out = make_float4(acc[r][s], acc[r][s + 1], acc[r][s + 2], acc[r][s + 3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (col + i < n) out[i] = acc[r][s + i];
            }
        }
    }
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 grid((n + BN - 1) / BN, (m + BM - 1) / BM);
    if (n % 4 == 0)
        matmul<true><<<grid, THREADS>>>(a, b, c, m, n, k);
    else
        matmul<false><<<grid, THREADS>>>(a, b, c, m, n, k);
}
