// Attention in one kernel: a block takes 128 queries of a head and walks over the keys, 64 at a time.
// Each thread holds 8 x 8 scores and 8 x 8 elements of y in registers; a running maximum and sum per
// row rescale them. Plain float32 multiply-adds throughout.
#include <cuda_runtime.h>
#include <math.h>

constexpr int DIM = 64;
constexpr int QUERIES = 128;
constexpr int KEYS = 64;
constexpr int THREADS = 128;
constexpr int Q_STRIDE = QUERIES + 4;  // q and the weights are stored by column (element, row)
constexpr int K_STRIDE = KEYS + 4;     // so are the keys
constexpr int SHARED = (2 * DIM * Q_STRIDE + DIM * K_STRIDE + KEYS * DIM) * sizeof(float);
constexpr float LOG2E = 1.4426950408889634f;

// acc[r][s] += sum over DIM of left[i][rows] * right[i][cols]: rows row..+3, +16.., cols col..+3, +32..
__device__ __forceinline__ void multiply(float (&acc)[8][8], const float* left, const float* right, int right_stride,
                                         int row, int col) {
#pragma unroll 8
    for (int i = 0; i < DIM; ++i) {
        float x[8], z[8];
        *(float4*)(x) = *(const float4*)(left + i * Q_STRIDE + row);
        *(float4*)(x + 4) = *(const float4*)(left + i * Q_STRIDE + row + 16);
        *(float4*)(z) = *(const float4*)(right + i * right_stride + col);
        *(float4*)(z + 4) = *(const float4*)(right + i * right_stride + col + 32);
#pragma unroll
        for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int s = 0; s < 8; ++s) acc[r][s] += x[r] * z[s];
    }
}

__global__ void __launch_bounds__(THREADS, 2)
attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ y,
          int seq) {
    extern __shared__ __align__(16) float shared[];
    float* queries = shared;                       // [DIM][Q_STRIDE]
    float* weights = queries + DIM * Q_STRIDE;     // [KEYS][Q_STRIDE]
    float* keys = weights + KEYS * Q_STRIDE;       // [DIM][K_STRIDE]
    float* values = keys + DIM * K_STRIDE;         // [KEYS][DIM]
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int first_query = blockIdx.x * QUERIES;
    const size_t base = (size_t)blockIdx.y * seq * DIM;
    // A warp owns 32 rows; lanes in pairs so that wide shared loads broadcast.
    const int row = warp * 32 + ((lane & 1) + lane / 16 * 2) * 4;
    const int col = lane / 2 % 8 * 4;

    for (int item = tid; item < QUERIES * DIM / 4; item += THREADS) {
        const int r = item % QUERIES, i = item / QUERIES * 4;
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first_query + r < seq) value = *(const float4*)(q + base + (size_t)(first_query + r) * DIM + i);
        queries[(i + 0) * Q_STRIDE + r] = value.x * 0.125f;
        queries[(i + 1) * Q_STRIDE + r] = value.y * 0.125f;
        queries[(i + 2) * Q_STRIDE + r] = value.z * 0.125f;
        queries[(i + 3) * Q_STRIDE + r] = value.w * 0.125f;
    }

    float out[8][8] = {}, largest[8], sum[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        largest[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    for (int first = 0; first < seq; first += KEYS) {
        __syncthreads();
        for (int item = tid; item < KEYS * DIM / 4; item += THREADS) {
            const int key = item % KEYS, i = item / KEYS * 4;
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + key < seq) value = *(const float4*)(k + base + (size_t)(first + key) * DIM + i);
            keys[(i + 0) * K_STRIDE + key] = value.x;
            keys[(i + 1) * K_STRIDE + key] = value.y;
            keys[(i + 2) * K_STRIDE + key] = value.z;
            keys[(i + 3) * K_STRIDE + key] = value.w;
            const int line = item / (DIM / 4), quad = item % (DIM / 4);
            value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + line < seq) value = *(const float4*)(v + base + (size_t)(first + line) * DIM + quad * 4);
            *(float4*)(values + line * DIM + quad * 4) = value;
        }
        __syncthreads();

        float score[8][8] = {};
        multiply(score, queries, keys, K_STRIDE, row, col);
        if (first + KEYS > seq) {
#pragma unroll
            for (int s = 0; s < 8; ++s)
                if (first + col + s % 4 + s / 4 * 32 >= seq)
#pragma unroll
                    for (int r = 0; r < 8; ++r) score[r][s] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < 8; ++r) {
            float top = largest[r];
#pragma unroll
            for (int s = 0; s < 8; ++s) top = fmaxf(top, score[r][s]);
#pragma unroll
            for (int step = 2; step <= 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const float keep = exp2f((largest[r] - top) * LOG2E);
            largest[r] = top;
            sum[r] *= keep;  // this lane's share of the row's sum; joined at the end
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                score[r][s] = exp2f((score[r][s] - top) * LOG2E);
                sum[r] += score[r][s];
                out[r][s] *= keep;
            }
        }
        // The weights' rows are read by this warp alone.
#pragma unroll
        for (int s = 0; s < 8; ++s) {
            float* target = weights + (col + s % 4 + s / 4 * 32) * Q_STRIDE + row;
            *(float4*)target = make_float4(score[0][s], score[1][s], score[2][s], score[3][s]);
            *(float4*)(target + 16) = make_float4(score[4][s], score[5][s], score[6][s], score[7][s]);
        }
        __syncwarp();
        multiply(out, weights, values, DIM, row, col);
        __syncwarp();
    }

#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
        for (int step = 2; step <= 8; step *= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
        const int query = first_query + row + r % 4 + r / 4 * 16;
        if (query >= seq) continue;
        const float scale = 1.0f / sum[r];
        float* target = y + base + (size_t)query * DIM + col;
        *(float4*)target = make_float4(out[r][0] * scale, out[r][1] * scale, out[r][2] * scale, out[r][3] * scale);
        *(float4*)(target + 32) = make_float4(out[r][4] * scale, out[r][5] * scale, out[r][6] * scale, out[r][7] * scale);
    }
}

void launch(const float* q, const float* k, const float* v, float* y, int heads, int seq) {
    cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
    attention<<<dim3((seq + QUERIES - 1) / QUERIES, heads), THREADS, SHARED>>>(q, k, v, y, seq);
}
