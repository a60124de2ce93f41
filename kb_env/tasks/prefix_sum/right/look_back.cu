// Inclusive scan in one pass: each tile looks back over its predecessors' published sums
// (decoupled look-back; Merrill and Garland, 2016). One read and one write of the vector.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int QUADS = 8;
constexpr int WARP_TILE = 32 * 4 * QUADS;
constexpr int TILE = WARPS * WARP_TILE;

// A tile's state: flag in the upper half, the float's bits in the lower, so that one load gets both.
constexpr unsigned EMPTY = 0, PARTIAL = 1, COMPLETE = 2;

__device__ void publish(unsigned long long* state, unsigned flag, float value) {
    unsigned long long word = (unsigned long long)flag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(state), "l"(word) : "memory");
}

__device__ unsigned long long observe(const unsigned long long* state) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(state) : "memory");
    return word;
}

__device__ float warp_scan(float value) {
    for (int step = 1; step < 32; step *= 2) {
        float left = __shfl_up_sync(0xffffffff, value, step);
        if (threadIdx.x % 32 >= step) value += left;
    }
    return value;
}

// Sum of all tiles before this one. Called by warp 0: each lane watches one predecessor.
__device__ float look_back(const unsigned long long* states, int tile) {
    int lane = threadIdx.x;
    float before = 0.0f;
    for (int last = tile - 1; last >= 0; last -= 32) {
        int mine = last - lane;
        unsigned flag = COMPLETE;
        float value = 0.0f;
        if (mine >= 0) {
            unsigned long long word;
            do word = observe(states + mine);
            while ((flag = (unsigned)(word >> 32)) == EMPTY);
            value = __uint_as_float((unsigned)word);
        }
        // Lanes beyond the nearest complete prefix are part of it already.
        unsigned complete = __ballot_sync(0xffffffff, flag == COMPLETE);
        int nearest = complete ? __ffs(complete) - 1 : 31;
        float part = lane <= nearest ? value : 0.0f;
        for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xffffffff, part, step);
        before += part;
        if (complete) break;
    }
    return before;
}

__device__ float4 load_quad(const float* x, int i, int n) {
    if (i + 4 <= n) return __ldcs(reinterpret_cast<const float4*>(x + i));
    return make_float4(i < n ? x[i] : 0.0f, i + 1 < n ? x[i + 1] : 0.0f, i + 2 < n ? x[i + 2] : 0.0f, 0.0f);
}

__device__ void store_quad(float* y, int i, int n, float4 v) {
    if (i + 4 <= n) {
        __stcs(reinterpret_cast<float4*>(y + i), v);
        return;
    }
    if (i < n) y[i] = v.x;
    if (i + 1 < n) y[i + 1] = v.y;
    if (i + 2 < n) y[i + 2] = v.z;
}

__global__ void scan(const float* x, float* y, unsigned long long* states, unsigned* ticket, int n) {
    __shared__ float warp_sums[WARPS];
    __shared__ float before_tile;
    __shared__ int shared_tile;
    // Tiles are numbered in the order blocks start, so that predecessors always make progress.
    if (threadIdx.x == 0) shared_tile = atomicAdd(ticket, 1);
    __syncthreads();
    int tile = shared_tile, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int start = tile * TILE + warp * WARP_TILE + 4 * lane;

    // A warp owns neighbouring elements, 128 at a time: its lanes' quads are scanned by shuffles.
    float4 v[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) v[q] = load_quad(x, start + q * 128, n);
    float carry = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        v[q].y += v[q].x;
        v[q].z += v[q].y;
        v[q].w += v[q].z;
        float through = warp_scan(v[q].w);
        float left = __shfl_up_sync(0xffffffff, through, 1);
        float before = carry + (lane > 0 ? left : 0.0f);
        carry += __shfl_sync(0xffffffff, through, 31);
        v[q] = make_float4(v[q].x + before, v[q].y + before, v[q].z + before, v[q].w + before);
    }
    if (lane == 0) warp_sums[warp] = carry;
    __syncthreads();
    float before_warp = 0.0f, total = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) before_warp += warp_sums[w];
        total += warp_sums[w];
    }
    if (warp == 0) {
        if (lane == 0) publish(states + tile, tile == 0 ? COMPLETE : PARTIAL, total);
        float before = look_back(states, tile);
        if (lane == 0) {
            if (tile > 0) publish(states + tile, COMPLETE, before + total);
            before_tile = before;
        }
    }
    __syncthreads();
    float before = before_tile + before_warp;
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
        store_quad(y, start + q * 128, n,
                   make_float4(v[q].x + before, v[q].y + before, v[q].z + before, v[q].w + before));
}

void launch(const float* x, float* y, int n) {
    int tiles = (n + TILE - 1) / TILE;
    unsigned long long* states = nullptr;
    cudaMalloc(&states, sizeof(unsigned long long) * (tiles + 1));
    cudaMemsetAsync(states, 0, sizeof(unsigned long long) * (tiles + 1));
    scan<<<tiles, BLOCK>>>(x, y, states, reinterpret_cast<unsigned*>(states + tiles), n);
    cudaFree(states);
}
