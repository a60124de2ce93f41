// Inclusive scan in three kernels that move less: sum tiles, scan the sums, scan tiles from their offset.
#include <cuda_runtime.h>

constexpr int BLOCK = 512;
constexpr int WARPS = BLOCK / 32;
constexpr int QUADS = 4;
constexpr int TILE = 4 * QUADS * BLOCK;

__device__ float warp_scan(float value) {
    for (int step = 1; step < 32; step *= 2) {
        float left = __shfl_up_sync(0xffffffff, value, step);
        if (threadIdx.x % 32 >= step) value += left;
    }
    return value;
}

// Inclusive scan over the block; `total` is the block's sum.
__device__ float block_scan(float value, float& total) {
    __shared__ float sums[WARPS];
    float through = warp_scan(value);
    __syncthreads();
    if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = through;
    __syncthreads();
    float before = 0.0f;
    total = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
        if (w < threadIdx.x / 32) before += sums[w];
        total += sums[w];
    }
    return before + through;
}

__device__ float4 load_quad(const float* x, int i, int n) {
    if (i + 4 <= n) return *reinterpret_cast<const float4*>(x + i);
    return make_float4(i < n ? x[i] : 0.0f, i + 1 < n ? x[i + 1] : 0.0f, i + 2 < n ? x[i + 2] : 0.0f, 0.0f);
}

__global__ void tile_sums(const float* x, float* sums, int n) {
    float4 v[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) v[q] = load_quad(x, blockIdx.x * TILE + 4 * (q * BLOCK + threadIdx.x), n);
    float sum = 0.0f, total;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) sum += (v[q].x + v[q].y) + (v[q].z + v[q].w);
    block_scan(sum, total);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void scan_sums(float* sums, int count) {
    float carry = 0.0f;
    for (int base = 0; base < count; base += BLOCK) {
        int i = base + threadIdx.x;
        float total, own = i < count ? sums[i] : 0.0f;
        float through = block_scan(own, total);
        if (i < count) sums[i] = carry + (through - own);
        carry += total;
    }
}

__global__ void scan_tiles(const float* x, float* y, const float* sums, int n) {
    // Tiles in reverse order: the last ones that the first kernel read are still in cache.
    int tile = gridDim.x - 1 - blockIdx.x;
    float carry = sums[tile];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int i = tile * TILE + 4 * (q * BLOCK + threadIdx.x);
        float4 v = load_quad(x, i, n);
        v.y += v.x;
        v.z += v.y;
        v.w += v.z;
        float total, through = block_scan(v.w, total);
        float before = carry + (through - v.w);
        carry += total;
        v = make_float4(v.x + before, v.y + before, v.z + before, v.w + before);
        if (i + 4 <= n) {
            *reinterpret_cast<float4*>(y + i) = v;
        } else {
            if (i < n) y[i] = v.x;
            if (i + 1 < n) y[i + 1] = v.y;
            if (i + 2 < n) y[i + 2] = v.z;
        }
    }
}

void launch(const float* x, float* y, int n) {
    int tiles = (n + TILE - 1) / TILE;
    float* sums = nullptr;
    cudaMalloc(&sums, sizeof(float) * tiles);
    tile_sums<<<tiles, BLOCK>>>(x, sums, n);
    scan_sums<<<1, BLOCK>>>(sums, tiles);
    scan_tiles<<<tiles, BLOCK>>>(x, y, sums, n);
    cudaFree(sums);
}
