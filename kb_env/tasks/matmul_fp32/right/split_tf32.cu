// Matrix product on tensor cores with float32 accuracy: every operand is split into two TF32 parts,
// x = high + low, and low * high + high * low + high * high is summed in float32 (what is left out is
// 2^-22 of a product). Blocks of 128 x 128 elements, eight warps of 64 x 32, three shared buffers filled
// by asynchronous copies.
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 32;
constexpr int STAGES = 3;
constexpr int THREADS = 256;
constexpr int A_STRIDE = BK + 8;  // no bank conflicts for 8 rows x 4 pairs of neighbours
constexpr int B_STRIDE = BN + 4;  // nor for 4 pairs of rows x 8 columns
constexpr int A_FLOATS = BM * A_STRIDE;
constexpr int STAGE = A_FLOATS + BK * B_STRIDE;
constexpr int SHARED = STAGES * STAGE * sizeof(float);

__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    low = __float_as_uint(x - __uint_as_float(high));
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Copies BYTES from global to shared memory without waiting; zeros where `valid` is false.
template <int BYTES>
__device__ __forceinline__ void copy_async(float* target, const float* source, bool valid) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = valid ? BYTES : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(source), "n"(BYTES), "r"(bytes)
                 : "memory");
}

// Copies a ROWS x COLS tile at (row0, col0) of a rows x cols matrix, WIDTH floats at a time.
template <int ROWS, int COLS, int STRIDE, int WIDTH>
__device__ __forceinline__ void copy_tile(float* target, const float* x, int row0, int col0, int rows, int cols) {
#pragma unroll
    for (int i = 0; i < ROWS * COLS / WIDTH / THREADS; ++i) {
        const int item = threadIdx.x + i * THREADS;
        const int row = item / (COLS / WIDTH), col = item % (COLS / WIDTH) * WIDTH;
        const bool valid = row0 + row < rows && col0 + col < cols;
        copy_async<4 * WIDTH>(target + row * STRIDE + col, valid ? x + (size_t)(row0 + row) * cols + col0 + col : x,
                              valid);
    }
}

// WIDTH: 4 where rows of a and b start at multiples of 16 bytes, else 1.
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
    extern __shared__ __align__(16) float shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = lane / 4, member = lane % 4;
    const int first_row = blockIdx.y * BM, first_col = blockIdx.x * BN;
    const int warp_row = warp / 4 * 64, warp_col = warp % 4 * 32;

    auto load = [&](int step) {
        float* slot = shared + step % STAGES * STAGE;
        copy_tile<BM, BK, A_STRIDE, WIDTH>(slot, a, first_row, step * BK, m, k);
        copy_tile<BK, BN, B_STRIDE, WIDTH>(slot + A_FLOATS, b, step * BK, first_col, k, n);
    };

    const int steps = (k + BK - 1) / BK;
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) load(step);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    float acc[4][4][4] = {};  // 16-row tile, 8-column tile, fragment
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const float* a_tile = shared + step % STAGES * STAGE + (warp_row + group) * A_STRIDE + member * 2;
        const float* b_tile = shared + step % STAGES * STAGE + A_FLOATS + member * 2 * B_STRIDE + warp_col + group;
        // A fragment's columns member and member + 4 stand for terms 2 member and 2 member + 1 of each
        // 8: the order of a sum's terms is free, and neighbours load together.
#pragma unroll
        for (int i = 0; i < BK; i += 8) {
            unsigned a_high[4][4], a_low[4][4], b_high[4][2], b_low[4][2];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float2 upper = *(const float2*)(a_tile + r * 16 * A_STRIDE + i);
                const float2 lower = *(const float2*)(a_tile + (r * 16 + 8) * A_STRIDE + i);
                split(upper.x, a_high[r][0], a_low[r][0]);
                split(lower.x, a_high[r][1], a_low[r][1]);
                split(upper.y, a_high[r][2], a_low[r][2]);
                split(lower.y, a_high[r][3], a_low[r][3]);
            }
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                split(b_tile[i * B_STRIDE + s * 8], b_high[s][0], b_low[s][0]);
                split(b_tile[(i + 1) * B_STRIDE + s * 8], b_high[s][1], b_low[s][1]);
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) {
#pragma unroll
                for (int s = 0; s < 4; ++s) multiply(acc[r][s], a_low[r], b_high[s]);
#pragma unroll
                for (int s = 0; s < 4; ++s) multiply(acc[r][s], a_high[r], b_low[s]);
#pragma unroll
                for (int s = 0; s < 4; ++s) multiply(acc[r][s], a_high[r], b_high[s]);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = first_row + warp_row + r * 16 + j / 2 * 8 + group;
            if (row >= m) continue;
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int col = first_col + warp_col + s * 8 + member * 2 + j % 2;
                if (col < n) c[(size_t)row * n + col] = acc[r][s][j];
            }
        }
    }
}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    const dim3 grid((n + BN - 1) / BN, (m + BM - 1) / BM);
    if (k % 4 == 0 && n % 4 == 0) {
        cudaFuncSetAttribute(matmul<4>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
        matmul<4><<<grid, THREADS, SHARED>>>(a, b, c, m, n, k);
    } else {
        cudaFuncSetAttribute(matmul<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
        matmul<1><<<grid, THREADS, SHARED>>>(a, b, c, m, n, k);
    }
}
