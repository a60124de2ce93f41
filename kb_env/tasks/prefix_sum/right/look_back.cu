// Inclusive scan in one pass: each tile looks back over its predecessors' published sums
// (decoupled look-back; Merrill and Garland, 2016). One read and one write of the vector.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
constexpr int QUADS = 4;
constexpr int ITEMS = 4 * QUADS;
constexpr int TILE = BLOCK * ITEMS;

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

__global__ void scan(const float* x, float* y, unsigned long long* states, unsigned* ticket, int n) {
    __shared__ float items[TILE];
    __shared__ float warp_sums[WARPS];
    __shared__ float before_tile;
    __shared__ int shared_tile;
    // Tiles are numbered in the order blocks start, so that predecessors always make progress.
    if (threadIdx.x == 0) shared_tile = atomicAdd(ticket, 1);
    __syncthreads();
    int tile = shared_tile, start = tile * TILE;
    bool whole = start + TILE <= n;

    // Coalesced in, then each thread takes ITEMS neighbours out of shared memory.
    float4* quads = reinterpret_cast<float4*>(items);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        if (whole) {
            quads[c] = __ldcs(reinterpret_cast<const float4*>(x + start) + c);
        } else {
            for (int k = 4 * c; k < 4 * c + 4; ++k) items[k] = start + k < n ? x[start + k] : 0.0f;
        }
    }
    __syncthreads();
    float4 v[QUADS];
    float sum = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        v[q] = quads[threadIdx.x * QUADS + q];
        v[q].x = sum += v[q].x;
        v[q].y = sum += v[q].y;
        v[q].z = sum += v[q].z;
        v[q].w = sum += v[q].w;
    }
    float through = warp_scan(sum);
    if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = through;
    __syncthreads();
    float before_warp = 0.0f, total = 0.0f;
    for (int w = 0; w < WARPS; ++w) {
        if (w < threadIdx.x / 32) before_warp += warp_sums[w];
        total += warp_sums[w];
    }
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) publish(states + tile, tile == 0 ? COMPLETE : PARTIAL, total);
        float before = look_back(states, tile);
        if (threadIdx.x == 0) {
            if (tile > 0) publish(states + tile, COMPLETE, before + total);
            before_tile = before;
        }
    }
    __syncthreads();
    float before = before_tile + (before_warp + (through - sum));
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
        quads[threadIdx.x * QUADS + q] =
            make_float4(v[q].x + before, v[q].y + before, v[q].z + before, v[q].w + before);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        int c = q * BLOCK + threadIdx.x;
        if (whole) {
            __stcs(reinterpret_cast<float4*>(y + start) + c, quads[c]);
        } else {
            for (int k = 4 * c; k < 4 * c + 4 && start + k < n; ++k) y[start + k] = items[k];
        }
    }
}

void launch(const float* x, float* y, int n) {
    int tiles = (n + TILE - 1) / TILE;
    unsigned long long* states = nullptr;
    cudaMalloc(&states, sizeof(unsigned long long) * (tiles + 1));
    cudaMemsetAsync(states, 0, sizeof(unsigned long long) * (tiles + 1));
    scan<<<tiles, BLOCK>>>(x, y, states, reinterpret_cast<unsigned*>(states + tiles), n);
    cudaFree(states);
}
