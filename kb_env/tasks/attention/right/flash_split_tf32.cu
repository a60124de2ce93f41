// Attention in one kernel on tensor cores with float32 accuracy: every operand is split into two TF32
// parts, x = high + low, and high * high + high * low + low * high is summed in float32 (what is left out
// is 2^-22 of a product). A block takes 64 queries of a head, 16 a warp, and walks over the keys, 64 at
// a time, which asynchronous copies bring one step ahead.
#include <cuda_runtime.h>
#include <math.h>

constexpr int DIM = 64;
constexpr int QUERIES = 64;
constexpr int KEYS = 64;
constexpr int THREADS = 128;
constexpr int K_STRIDE = DIM + 8;  // no bank conflicts for 8 rows x 4 pairs of neighbours
constexpr int V_STRIDE = DIM + 4;  // nor for 4 pairs of rows x 8 columns
constexpr int STAGE = KEYS * (K_STRIDE + V_STRIDE);
constexpr int SHARED = 2 * STAGE * sizeof(float);
constexpr float LOG2E = 1.4426950408889634f;

// Volatile: else the compiler keeps all of q split, and spills.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    low = __float_as_uint(x - __uint_as_float(high));
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the three partial products of one 16 x 8 left fragment and four 8 x 8 right fragments.
__device__ __forceinline__ void multiply_split(float (*c)[4], const unsigned (&a_high)[4], const unsigned (&a_low)[4],
                                               const float (&b)[4][2]) {
    unsigned high[4][2], low[4][2];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        split(b[n][0], high[n][0], low[n][0]);
        split(b[n][1], high[n][1], low[n][1]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) multiply(c[n], a_low, high[n][0], high[n][1]);
#pragma unroll
    for (int n = 0; n < 4; ++n) multiply(c[n], a_high, low[n][0], low[n][1]);
#pragma unroll
    for (int n = 0; n < 4; ++n) multiply(c[n], a_high, high[n][0], high[n][1]);
}

// Copies 16 bytes from global to shared memory without waiting; zeros where `valid` is false.
__device__ __forceinline__ void copy_async(float* target, const float* source, bool valid) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(bytes) : "memory");
}

__global__ void __launch_bounds__(THREADS, 3)
attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ y,
          int seq) {
    extern __shared__ __align__(16) float shared[];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int group = lane / 4, member = lane % 4;
    const size_t base = (size_t)blockIdx.y * seq * DIM;
    const int row = blockIdx.x * QUERIES + warp * 16 + group;  // this lane's rows: row and row + 8

    auto load = [&](int first, int buffer) {
        float* keys = shared + buffer * STAGE;
        float* values = keys + KEYS * K_STRIDE;
#pragma unroll
        for (int i = 0; i < KEYS * DIM / 4 / THREADS; ++i) {
            const int line = tid / 16 + i * (THREADS / 16), at = tid % 16 * 4;
            const bool valid = first + line < seq;
            const size_t source = valid ? base + (size_t)(first + line) * DIM + at : 0;
            copy_async(keys + line * K_STRIDE + at, k + source, valid);
            copy_async(values + line * V_STRIDE + at, v + source, valid);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    load(0, 0);

    // The fragment's columns member and member + 4 stand for elements 2 member and 2 member + 1 of
    // each 8: the order of a sum's terms is free, and neighbours load together.
    float query[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float2 upper = make_float2(0.0f, 0.0f), lower = upper;
        if (row < seq) upper = *(const float2*)(q + base + (size_t)row * DIM + i * 8 + member * 2);
        if (row + 8 < seq) lower = *(const float2*)(q + base + (size_t)(row + 8) * DIM + i * 8 + member * 2);
        query[i][0] = upper.x * 0.125f;
        query[i][1] = lower.x * 0.125f;
        query[i][2] = upper.y * 0.125f;
        query[i][3] = lower.y * 0.125f;
    }

    float out[8][4] = {}, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int first = 0, buffer = 0; first < seq; first += KEYS, buffer ^= 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (first + KEYS < seq) load(first + KEYS, buffer ^ 1);
        const float* keys = shared + buffer * STAGE;
        const float* values = keys + KEYS * K_STRIDE;

        float score[8][4] = {};  // 8 keys each: columns 2 member and 2 member + 1 of both rows
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            unsigned high[4], low[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) split(query[i][j], high[j], low[j]);
#pragma unroll
            for (int n = 0; n < 8; n += 4) {
                float b[4][2];
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const float2 pair =
                        *(const float2*)(keys + ((n + s) * 8 + group) * K_STRIDE + i * 8 + member * 2);
                    b[s][0] = pair.x;
                    b[s][1] = pair.y;
                }
                multiply_split(score + n, high, low, b);
            }
        }

        if (first + KEYS > seq) {
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (first + n * 8 + member * 2 + j % 2 >= seq) score[n][j] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = largest[r];
#pragma unroll
            for (int n = 0; n < 8; ++n) top = fmaxf(top, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float keep = exp2f((largest[r] - top) * LOG2E);
            largest[r] = top;
            sum[r] *= keep;  // this lane's share of the row's sum; joined at the end
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int j = 2 * r; j < 2 * r + 2; ++j) {
                    score[n][j] = exp2f((score[n][j] - top) * LOG2E);
                    sum[r] += score[n][j];
                    out[n][j] *= keep;
                }
            }
        }

#pragma unroll
        for (int i = 0; i < 8; ++i) {  // 8 keys: keys 2 member and 2 member + 1 are columns member and member + 4
            unsigned high[4], low[4];
            split(score[i][0], high[0], low[0]);
            split(score[i][2], high[1], low[1]);
            split(score[i][1], high[2], low[2]);
            split(score[i][3], high[3], low[3]);
#pragma unroll
            for (int n = 0; n < 8; n += 4) {
                float b[4][2];
#pragma unroll
                for (int s = 0; s < 4; ++s) {
                    const float* value = values + (i * 8 + member * 2) * V_STRIDE + (n + s) * 8 + group;
                    b[s][0] = value[0];
                    b[s][1] = value[V_STRIDE];
                }
                multiply_split(out + n, high, low, b);
            }
        }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (row + 8 * r >= seq) continue;
        const float scale = 1.0f / sum[r];
        float* target = y + base + (size_t)(row + 8 * r) * DIM + member * 2;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            *(float2*)(target + n * 8) = make_float2(out[n][2 * r] * scale, out[n][2 * r + 1] * scale);
    }
}

void launch(const float* q, const float* k, const float* v, float* y, int heads, int seq) {
    cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    attention<<<dim3((seq + QUERIES - 1) / QUERIES, heads), THREADS, SHARED>>>(q, k, v, y, seq);
}
