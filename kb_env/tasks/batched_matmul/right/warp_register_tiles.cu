// Many small matrix products. n = 32: a block of two warps takes a pair of matrices, each thread 4 x 4
// elements of c in registers, operands in shared memory, all traffic in 16-byte pieces.
// Other n: one block per pair, one element of c a thread at a time out of shared memory.
#include <cuda_runtime.h>

constexpr int N = 32;
constexpr int PAIRS = 2;  // pairs of matrices a block takes
constexpr int THREADS = 64 * PAIRS;
constexpr int LEFT_STRIDE = N + 4;  // rows of the left matrix start 4 banks apart
constexpr int LARGEST = 64;
constexpr int BLOCK = 256;

__global__ void __launch_bounds__(THREADS)
matmul32(const float4* __restrict__ x, const float4* __restrict__ y, float4* __restrict__ c, int batch) {
    __shared__ __align__(16) float left[PAIRS][N][LEFT_STRIDE];
    __shared__ __align__(16) float right[PAIRS][N][N];
    const int pair = threadIdx.x / 64, thread = threadIdx.x % 64;
    const int index = blockIdx.x * PAIRS + pair;
    const size_t first = (size_t)index * (N * N / 4);
    if (index < batch) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int quad = thread + 64 * i;
            *(float4*)&left[pair][quad / 8][quad % 8 * 4] = x[first + quad];
            *(float4*)&right[pair][quad / 8][quad % 8 * 4] = y[first + quad];
        }
    }
    __syncthreads();
    if (index >= batch) return;

    const int row = thread / 8, col = thread % 8 * 4;  // rows row, row + 8, row + 16, row + 24
    float acc[4][4] = {};
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float a[4][4], b[4][4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            *(float4*)a[r] = *(const float4*)&left[pair][row + 8 * r][i];
            *(float4*)b[r] = *(const float4*)&right[pair][i + r][col];
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int s = 0; s < 4; ++s) acc[r][s] += a[r][k] * b[k][s];
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
        c[first + (row + 8 * r) * 8 + col / 4] = make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

__global__ void __launch_bounds__(BLOCK) matmul_any(const float* x, const float* y, float* c, int n) {
    __shared__ float left[LARGEST * LARGEST];
    __shared__ float right[LARGEST * LARGEST];
    const size_t first = (size_t)blockIdx.x * n * n;
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        left[element] = x[first + element];
        right[element] = y[first + element];
    }
    __syncthreads();
    for (int element = threadIdx.x; element < n * n; element += BLOCK) {
        const int row = element / n, col = element % n;
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += left[row * n + i] * right[i * n + col];
        c[first + element] = sum;
    }
}

void launch(const float* x, const float* y, float* c, int batch, int n) {
    if (n == N)
        matmul32<<<(batch + PAIRS - 1) / PAIRS, THREADS>>>((const float4*)x, (const float4*)y, (float4*)c, batch);
    else
        matmul_any<<<batch, BLOCK>>>(x, y, c, n);
}
