// Matrix product in float16 with float32 sums on tensor cores (mma.sync m16n8k16). Blocks of 128 x 64
// elements, four warps of 64 x 32; shared memory is filled by asynchronous copies several steps ahead
// and read by ldmatrix; its 16-byte pieces are permuted so that neither side meets bank conflicts.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 64;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int THREADS = 128;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int SHARED = STAGES * (A_BYTES + B_BYTES);

// Byte offset of 16-byte piece `piece` (0 to 7) of 128-byte row `row`.
__device__ __forceinline__ unsigned place(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// Copies 8 halves; the ones past `count` become zero. EVEN: all or none, 16 bytes aligned.
template <bool EVEN>
__device__ __forceinline__ void copy8(unsigned target, const __half* source, const __half* anywhere, int count) {
    if (EVEN) {
        const int bytes = count > 0 ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target),
                     "l"(count > 0 ? source : anywhere), "r"(bytes)
                     : "memory");
    } else {
        unsigned word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned low = 2 * i < count ? __half_as_ushort(source[2 * i]) : 0;
            const unsigned high = 2 * i + 1 < count ? __half_as_ushort(source[2 * i + 1]) : 0;
            word[i] = low | high << 16;
        }
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(word[0]), "r"(word[1]),
                     "r"(word[2]), "r"(word[3])
                     : "memory");
    }
}

__device__ __forceinline__ void load4(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}

__device__ __forceinline__ void load4_transposed(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// EVEN: k and n are multiples of 8, so that every row starts at a multiple of 16 bytes.
template <bool EVEN>
__global__ void __launch_bounds__(THREADS)
matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int m, int n, int k) {
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned a_base = (unsigned)__cvta_generic_to_shared(shared);
    const unsigned b_base = a_base + STAGES * A_BYTES;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int first_row = blockIdx.y * BM, first_col = blockIdx.x * BN;
    const int warp_row = warp / 2 * 64, warp_col = warp % 2 * 32;

    auto load = [&](int step) {
        const int start = step * BK;
        const unsigned a_slot = a_base + step % STAGES * A_BYTES, b_slot = b_base + step % STAGES * B_BYTES;
        const int line = tid / 8, piece = tid % 8;
#pragma unroll
        for (int i = 0; i < BM / 16; ++i) {
            const int row = line + 16 * i, at = start + piece * 8;
            const int count = first_row + row < m ? min(8, k - at) : 0;
            copy8<EVEN>(a_slot + place(row, piece), a + (size_t)(first_row + row) * k + at, a, count);
        }
#pragma unroll
        for (int i = 0; i < BK / 16; ++i) {
            const int row = line + 16 * i, at = first_col + piece * 8;
            const int count = start + row < k ? min(8, n - at) : 0;
            copy8<EVEN>(b_slot + place(row, piece), b + (size_t)(start + row) * n + at, b, count);
        }
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
        const unsigned a_slot = a_base + step % STAGES * A_BYTES, b_slot = b_base + step % STAGES * B_BYTES;
#pragma unroll
        for (int i = 0; i < BK / 16; ++i) {
            unsigned x[4][4], z[2][4];
            // a: lanes 0-15 give rows 0-15 of the left 8 columns, lanes 16-31 of the right 8.
#pragma unroll
            for (int r = 0; r < 4; ++r)
                load4(x[r], a_slot + place(warp_row + r * 16 + lane % 16, i * 2 + lane / 16));
            // b: lanes 0-15 give the 16 rows of 8 columns, lanes 16-31 of the next 8.
#pragma unroll
            for (int s = 0; s < 2; ++s)
                load4_transposed(z[s], b_slot + place(i * 16 + lane % 16, warp_col / 8 + s * 2 + lane / 16));
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int s = 0; s < 4; ++s) multiply(acc[r][s], x[r], z[s / 2][s % 2 * 2], z[s / 2][s % 2 * 2 + 1]);
        }
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + warp_row + r * 16 + half * 8 + lane / 4;
            if (row >= m) continue;
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                const int col = first_col + warp_col + s * 8 + lane % 4 * 2;
                __half* target = c + (size_t)row * n + col;
                const __half2 value = __floats2half2_rn(acc[r][s][half * 2], acc[r][s][half * 2 + 1]);
                if (EVEN) {
                    if (col < n) *(__half2*)target = value;
                } else {
                    if (col < n) target[0] = __low2half(value);
                    if (col + 1 < n) target[1] = __high2half(value);
                }
            }
        }
    }
}

void launch(const __half* a, const __half* b, __half* c, int m, int n, int k) {
    const dim3 grid((n + BN - 1) / BN, (m + BM - 1) / BM);
    if (k % 8 == 0 && n % 8 == 0) {
        cudaFuncSetAttribute(matmul<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
        matmul<true><<<grid, THREADS, SHARED>>>(a, b, c, m, n, k);
    } else {
        cudaFuncSetAttribute(matmul<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
        matmul<false><<<grid, THREADS, SHARED>>>(a, b, c, m, n, k);
    }
}
