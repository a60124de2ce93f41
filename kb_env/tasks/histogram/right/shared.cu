// Histogram in shared memory per block, int4 loads, blocks that fill the device once; merged by atomics.
#include <cuda_runtime.h>

constexpr int BLOCK = 1024;
constexpr int BLOCKS_PER_SM = 2;
constexpr int UNROLL = 4;
constexpr int MAX_BINS = 8192;

__global__ void histogram_shared(const int* keys, int* counts, int n, int bins) {
    extern __shared__ int local[];
    for (int b = threadIdx.x; b < bins; b += BLOCK) local[b] = 0;
    __syncthreads();
    const int4* quads = reinterpret_cast<const int4*>(keys);
    int stride = gridDim.x * BLOCK;
    int i = blockIdx.x * BLOCK + threadIdx.x;
    int rest = n / 4 * 4 + i;
    for (; i + (UNROLL - 1) * stride < n / 4; i += UNROLL * stride) {
        int4 k[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) k[u] = __ldcs(quads + i + u * stride);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            atomicAdd(&local[k[u].x], 1);
            atomicAdd(&local[k[u].y], 1);
            atomicAdd(&local[k[u].z], 1);
            atomicAdd(&local[k[u].w], 1);
        }
    }
    for (; i < n / 4; i += stride) {
        int4 k = quads[i];
        atomicAdd(&local[k.x], 1);
        atomicAdd(&local[k.y], 1);
        atomicAdd(&local[k.z], 1);
        atomicAdd(&local[k.w], 1);
    }
    if (rest < n) atomicAdd(&local[keys[rest]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += BLOCK)
        if (local[b] != 0) atomicAdd(&counts[b], local[b]);
}

__global__ void histogram_global(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i]], 1);
}

void launch(const int* keys, int* counts, int n, int bins) {
    cudaMemsetAsync(counts, 0, sizeof(int) * bins);
    if (bins > MAX_BINS) {
        histogram_global<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
        return;
    }
    int device = 0, sms = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    int needed = (n + 4 * BLOCK - 1) / (4 * BLOCK);
    int blocks = needed < sms * BLOCKS_PER_SM ? needed : sms * BLOCKS_PER_SM;
    histogram_shared<<<blocks, BLOCK, sizeof(int) * bins>>>(keys, counts, n, bins);
}
