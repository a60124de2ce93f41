// Attention in three kernels: all scores into a workspace, their softmax by rows, the weighted sums.
#include <cuda_runtime.h>
#include <math.h>

constexpr int DIM = 64;
constexpr int TILE = 16;
constexpr int BLOCK = 256;

__global__ void scores(const float* q, const float* k, float* s, int seq) {
    const int key = blockIdx.x * TILE + threadIdx.x;
    const int query = blockIdx.y * TILE + threadIdx.y;
    const size_t head = blockIdx.z;
    if (query >= seq || key >= seq) return;
    const float* a = q + (head * seq + query) * DIM;
    const float* b = k + (head * seq + key) * DIM;
    float sum = 0.0f;
    for (int i = 0; i < DIM; ++i) sum += a[i] * b[i];
    s[(head * seq + query) * seq + key] = sum * 0.125f;
}

__global__ void softmax(float* s, int seq) {
    __shared__ float scratch[BLOCK];
    float* row = s + (size_t)blockIdx.x * seq;
    float largest = -INFINITY;
    for (int c = threadIdx.x; c < seq; c += BLOCK) largest = fmaxf(largest, row[c]);
    scratch[threadIdx.x] = largest;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] = fmaxf(scratch[threadIdx.x], scratch[threadIdx.x + step]);
        __syncthreads();
    }
    largest = scratch[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = threadIdx.x; c < seq; c += BLOCK) sum += expf(row[c] - largest);
    scratch[threadIdx.x] = sum;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) scratch[threadIdx.x] += scratch[threadIdx.x + step];
        __syncthreads();
    }
    sum = scratch[0];
    for (int c = threadIdx.x; c < seq; c += BLOCK) row[c] = expf(row[c] - largest) / sum;
}

__global__ void weighted_sums(const float* s, const float* v, float* y, int seq) {
    const int col = blockIdx.x * TILE + threadIdx.x;
    const int query = blockIdx.y * TILE + threadIdx.y;
    const size_t head = blockIdx.z;
    if (query >= seq) return;
    const float* weights = s + (head * seq + query) * seq;
    float sum = 0.0f;
    for (int key = 0; key < seq; ++key) sum += weights[key] * v[(head * seq + key) * DIM + col];
    y[(head * seq + query) * DIM + col] = sum;
}

void launch(const float* q, const float* k, const float* v, float* y, int heads, int seq) {
    float* s;
    cudaMalloc(&s, (size_t)heads * seq * seq * sizeof(float));
    const dim3 block(TILE, TILE);
    const int tiles = (seq + TILE - 1) / TILE;
    scores<<<dim3(tiles, tiles, heads), block>>>(q, k, s, seq);
    softmax<<<heads * seq, BLOCK>>>(s, seq);
    weighted_sums<<<dim3(DIM / TILE, tiles, heads), block>>>(s, v, y, seq);
    cudaFree(s);
}
