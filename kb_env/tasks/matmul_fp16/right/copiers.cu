// Matrix product in float16 with float32 sums on Hopper's warpgroup tensor instructions (wgmma, sm_90a), warps
// specialised: one warpgroup copies tiles of both operands ahead, two multiply 64 x 128 each. They meet at
// barriers in shared memory, a pair for each of five tiles. The fence between copies and tensor unit stands with
// the multipliers, who have no copies under way that it would wait for.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int PANEL = 64;  // columns of b side by side in one 128-byte row
constexpr int BK = 64;
constexpr int STAGES = 5;
constexpr int COPIERS = 128;
constexpr int MULTIPLIERS = BM / 64;  // warpgroups of 64 rows each
constexpr int THREADS = MULTIPLIERS * 128 + COPIERS;
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
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
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

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once all copies that this thread has started are there.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity) {
    int done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
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
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
          "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
          "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
          "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
          "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
          "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
          "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
          "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
        : "l"(a), "l"(b));
}

// Asks for block `part`'s share of `bytes` at x in L2, one 128-byte line a thread at a time.
__device__ __forceinline__ void prefetch(const void* x, size_t bytes, int part, int parts) {
    constexpr int ASKERS = THREADS - COPIERS;
    for (size_t line = (size_t)part * ASKERS + threadIdx.x; line * 128 < bytes; line += (size_t)parts * ASKERS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)x + line * 128));
}

// EVEN: k and n are multiples of 8, so that every row starts at a multiple of 16 bytes.
template <bool EVEN>
__global__ void __launch_bounds__(THREADS, 1)
matmul(const __half* __restrict__ a, const __half* __restrict__ b, __half* __restrict__ c, int m, int n, int k) {
    extern __shared__ unsigned char shared[];
    __shared__ unsigned long long barriers[2 * STAGES];
    const unsigned base = (unsigned)__cvta_generic_to_shared(shared);
    const unsigned a_base = (base + 1023) & ~1023u;
    const unsigned b_base = a_base + STAGES * A_BYTES;
    const unsigned full = (unsigned)__cvta_generic_to_shared(barriers), empty = full + STAGES * 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = blockIdx.y * BM, first_col = blockIdx.x * BN;
    const int steps = (k + BK - 1) / BK;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i * 8, COPIERS);
            barrier_init(empty + i * 8, MULTIPLIERS);
        }
    __syncthreads();

    if (warp >= MULTIPLIERS * 4) {
        // Copiers keep STAGES tiles of both operands ahead.
        const int tid = threadIdx.x - MULTIPLIERS * 128;
        const int a_row = tid / 8, a_piece = tid % 8, b_row = tid / (BN / 8), b_piece = tid % (BN / 8);
        constexpr int LINES = COPIERS / (BN / 8);  // rows of b at a time
        const __half* a_from = a + (size_t)(first_row + a_row) * k + a_piece * 8;
        const __half* b_from = b + (size_t)b_row * n + first_col + b_piece * 8;
        const int b_count = n - first_col - b_piece * 8, a_left = m - first_row - a_row;
        const unsigned b_panel = b_base + b_piece / 8 * PANEL_BYTES;
        for (int step = 0; step < steps; ++step) {
            const int slot = step % STAGES, start = step * BK;
            if (step >= STAGES) barrier_wait(empty + slot * 8, (step / STAGES - 1) & 1);
            const int a_count = min(8, k - start - a_piece * 8), k_left = k - start - b_row;
#pragma unroll
            for (int i = 0; i < BM * 8 / COPIERS; ++i) {
                const __half* from = a_from + (size_t)(i * (COPIERS / 8)) * k;
                copy8<EVEN>(a_base + slot * A_BYTES + place(a_row + i * (COPIERS / 8), a_piece), from, a,
                            i * (COPIERS / 8) < a_left ? a_count : 0);
            }
#pragma unroll
            for (int i = 0; i < BK / LINES; ++i) {
                const __half* from = b_from + (size_t)(i * LINES) * n;
                copy8<EVEN>(b_panel + slot * B_BYTES + place(b_row + i * LINES, b_piece % 8), from, b,
                            i * LINES < k_left ? min(8, b_count) : 0);
            }
            if (EVEN) barrier_arrive_after_copies(full + slot * 8);
            else barrier_arrive(full + slot * 8);
            a_from += BK;
            b_from += (size_t)BK * n;
        }
        if (EVEN) asm volatile("cp.async.wait_all;" ::: "memory");
    } else {
        // Multipliers: one warpgroup per 64 rows; one step's products are in flight while the next are issued.
        const int part = blockIdx.y * gridDim.x + blockIdx.x, parts = gridDim.x * gridDim.y;
        prefetch(a, (size_t)m * k * 2, part, parts);
        prefetch(b, (size_t)k * n * 2, part, parts);
        float acc[BN / 2] = {};  // 8 columns each: two of row lane / 4, two of row lane / 4 + 8
        for (int step = 0; step < steps; ++step) {
            const int slot = step % STAGES;
            barrier_wait(full + slot * 8, step / STAGES & 1);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // threads' copies, read by the tensor unit
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            const unsigned a_slot = a_base + slot * A_BYTES + warp / 4 * (64 * BK * 2), b_slot = b_base + slot * B_BYTES;
#pragma unroll
            for (int i = 0; i < BK / 16; ++i)
                multiply(acc, operand(a_slot + i * 32), operand(b_slot + i * 16 * PANEL * 2));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > 0 && threadIdx.x % 128 == 0) barrier_arrive(empty + (step - 1) % STAGES * 8);
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        asm volatile("bar.sync 1, %0;" ::"n"(MULTIPLIERS * 128) : "memory");

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
