// Row sums, each row split over blocks: partial sums go to a workspace that a second kernel adds up.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int CHUNK = 4096;

__device__ float block_sum(float value) {
    __shared__ float partial[WARPS];
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x < WARPS ? partial[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32)
        for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffff, value, step);
    return value;
}

__global__ void chunk_sums(const float* x, float* partial, int cols, int chunks) {
    int row = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const float* in = x + (size_t)row * cols;
    int start = chunk * CHUNK, end = min(start + CHUNK, cols);
    float sum = 0.0f;
    // A row starts on a 16-byte boundary only if the number of columns is a multiple of 4.
    if (cols % 4 == 0) {
        const float4* quads = reinterpret_cast<const float4*>(in + start);
        float4 v[CHUNK / (4 * BLOCK)];
#pragma unroll
        for (int k = 0; k < CHUNK / (4 * BLOCK); ++k) {
            int c = k * BLOCK + threadIdx.x;
            v[k] = start + 4 * c < end ? __ldcs(quads + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int k = 0; k < CHUNK / (4 * BLOCK); ++k) sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    } else {
        for (int c = start + threadIdx.x; c < end; c += BLOCK) sum += in[c];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_chunks(const float* partial, float* y, int rows, int chunks) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[(size_t)row * chunks + chunk];
    y[row] = sum;
}

void launch(const float* x, float* y, int rows, int cols) {
    int chunks = (cols + CHUNK - 1) / CHUNK;
    float* partial = nullptr;
    cudaMalloc(&partial, sizeof(float) * rows * chunks);
    chunk_sums<<<rows * chunks, BLOCK>>>(x, partial, cols, chunks);
    add_chunks<<<(rows + BLOCK - 1) / BLOCK, BLOCK>>>(partial, y, rows, chunks);
    cudaFree(partial);
}
