// Matrix product in float16 with float32 sums on Hopper's warpgroup tensor instructions (wgmma, sm_90a).
// Small blocks of 64 x 64 elements, one warpgroup each, that start the copies of eight steps of k at once: for
// matrices whose operands fit, a block waits for memory once. The copies fill shared memory in the 128-byte
// swizzled layout that wgmma reads.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BM = 64;
constexpr int BN = 64;
constexpr int PANEL = 64;  // columns of b side by side in one 128-byte row
constexpr int BK = 64;
constexpr int STAGES = 10;
constexpr int AHEAD = STAGES - 2;  // a slot is free once the products two steps back are done
constexpr int THREADS = BM / 64 * 128;
constexpr int A_BYTES = BM * BK * 2;
constexpr int B_BYTES = BK * BN * 2;
constexpr int PANEL_BYTES = BK * PANEL * 2;
constexpr int SHARED = STAGES * (A_BYTES + B_BYTES) + 1024;  // the swizzle needs 1024-byte alignment
constexpr int ROW = BN + 8;                                  // halves of a padded row of results
static_assert(BM * ROW * 2 <= STAGES * (A_BYTES + B_BYTES), "the results do not fit");

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

// Shared-memory operands in 128-byte swizzled rows, 1024 bytes from one group of 8 rows to the next; the
// panels of b are PANEL_BYTES apart.
__device__ __forceinline__ unsigned long long operand(unsigned address) {
    return (unsigned long long)(address >> 4 & 0x3fff) | (unsigned long long)(PANEL_BYTES / 16) << 16 | 64ull << 32 |
           1ull << 62;
}

// c += a @ b for 64 x 16 halves of a (rows of k) and 16 x BN halves of b (rows of n, hence transposed).
__device__ __forceinline__ void multiply(float (&c)[BN / 2], unsigned long long a, unsigned long long b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, 1, 1, 1, 0, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
          "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "l"(a), "l"(b));
}

// Asks for block `part`'s share of `bytes` at x in L2, one 128-byte line a thread at a time.
__device__ __forceinline__ void prefetch(const void* x, size_t bytes, int part, int parts) {
    for (size_t line = (size_t)part * THREADS + threadIdx.x; line * 128 < bytes; line += (size_t)parts * THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)x + line * 128));
}

// EVEN: k and n are multiples of 8, so that every row starts at a multiple of 16 bytes.
template <bool EVEN>
__global__ void __launch_bounds__(THREADS, 1)
matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    const unsigned base = (unsigned)__cvta_generic_to_shared(shared);
    const unsigned a_base = (base + 1023) & ~1023u;
    const unsigned b_base = a_base + STAGES * A_BYTES;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int part = blockIdx.y * gridDim.x + blockIdx.x, parts = gridDim.x * gridDim.y;
    const int first_row = blockIdx.y * BM, first_col = blockIdx.x * BN;

    auto load = [&](int step) {
        const int start = step * BK;
        const unsigned a_slot = a_base + step % STAGES * A_BYTES, b_slot = b_base + step % STAGES * B_BYTES;
#pragma unroll
        for (int i = 0; i < BM * 8 / THREADS; ++i) {
            const int row = tid / 8 + THREADS / 8 * i, piece = tid % 8, at = start + piece * 8;
            const int count = first_row + row < m ? min(8, k - at) : 0;
            copy8<EVEN>(a_slot + place(row, piece), a + (size_t)(first_row + row) * k + at, a, count);
        }
#pragma unroll
        for (int i = 0; i < (BK * BN / 8 + THREADS - 1) / THREADS; ++i) {
            const int item = tid + THREADS * i, piece = item % 8, panel = item / 8 % (BN / PANEL);
            const int row = item / (BN / 8), at = first_col + panel * PANEL + piece * 8;
            if (BK * BN / 8 % THREADS != 0 && row >= BK) break;
            const int count = start + row < k ? min(8, n - at) : 0;
            copy8<EVEN>(b_slot + panel * PANEL_BYTES + place(row, piece), b + (size_t)(start + row) * n + at, b, count);
        }
    };

    const int steps = (k + BK - 1) / BK;
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < steps) load(step);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    prefetch(a, (size_t)m * k * 2, part, parts);
    prefetch(b, (size_t)k * n * 2, part, parts);

    float acc[BN / 2] = {};  // 8 columns each: two of row lane / 4, two of row lane / 4 + 8
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
        asm volatile("fence.proxy.async;" ::: "memory");  // copies made by threads, read by the tensor unit
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const unsigned a_slot = a_base + step % STAGES * A_BYTES + warp / 4 * (64 * BK * 2);
        const unsigned b_slot = b_base + step % STAGES * B_BYTES;
#pragma unroll
        for (int i = 0; i < BK / 16; ++i) multiply(acc, operand(a_slot + i * 32), operand(b_slot + i * 16 * PANEL * 2));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (step + AHEAD < steps) load(step + AHEAD);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();

    // Each warp turns its 16 rows in shared memory, to write whole rows.
    __half* mine = (__half*)(shared + (a_base - base)) + warp * 16 * ROW;
#pragma unroll
    for (int s = 0; s < BN / 8; ++s) {
        __half* target = mine + lane / 4 * ROW + s * 8 + lane % 4 * 2;
        *(__half2*)target = __floats2half2_rn(acc[s * 4], acc[s * 4 + 1]);
        *(__half2*)(target + 8 * ROW) = __floats2half2_rn(acc[s * 4 + 2], acc[s * 4 + 3]);
    }
    __syncwarp();
    for (int item = lane; item < 16 * BN / 8; item += 32) {
        const int line = item / (BN / 8), piece = item % (BN / 8);
        const int row = first_row + warp * 16 + line, col = first_col + piece * 8;
        const __half* from = mine + line * ROW + piece * 8;
        if (row >= m) break;
        if (EVEN) {
            if (col < n) *(uint4*)(c + (size_t)row * n + col) = *(const uint4*)from;
        } else {
            for (int i = 0; i < min(8, n - col); ++i) c[(size_t)row * n + col + i] = from[i];
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
