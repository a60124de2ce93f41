// Histogram with several shared copies per block to spread contention; partial counts merged by a second kernel.
#include <cuda_runtime.h>

constexpr int BLOCK = 512;
constexpr int BLOCKS = 528;
constexpr int SHARED_BYTES = 32768;
constexpr int MAX_COPIES = 4;

__global__ void count(const int* keys, int* partial, int n, int bins, int copies) {
    extern __shared__ int local[];
    for (int b = threadIdx.x; b < bins * copies; b += BLOCK) local[b] = 0;
    __syncthreads();
    int* mine = local + threadIdx.x / 32 % copies * bins;
    int stride = gridDim.x * BLOCK;
    const int4* quads = reinterpret_cast<const int4*>(keys);
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n / 4; i += stride) {
        int4 k = quads[i];
        atomicAdd(&mine[k.x], 1);
        atomicAdd(&mine[k.y], 1);
        atomicAdd(&mine[k.z], 1);
        atomicAdd(&mine[k.w], 1);
    }
    for (int i = n / 4 * 4 + blockIdx.x * BLOCK + threadIdx.x; i < n; i += stride) atomicAdd(&mine[keys[i]], 1);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += BLOCK) {
        int sum = 0;
        for (int copy = 0; copy < copies; ++copy) sum += local[copy * bins + b];
        partial[(size_t)blockIdx.x * bins + b] = sum;
    }
}

__global__ void merge(const int* partial, int* counts, int blocks, int bins) {
    int bin = blockIdx.x * 32 + threadIdx.x;
    int sum = 0;
    if (bin < bins)
        for (int b = threadIdx.y; b < blocks; b += 32) sum += partial[(size_t)b * bins + bin];
    __shared__ int sums[32][33];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && bin < bins) {
        sum = 0;
        for (int t = 0; t < 32; ++t) sum += sums[t][threadIdx.x];
        counts[bin] = sum;
    }
}

__global__ void count_global(const int* keys, int* counts, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&counts[keys[i]], 1);
}

void launch(const int* keys, int* counts, int n, int bins) {
    int copies = SHARED_BYTES / (int)(sizeof(int) * bins);
    if (copies > MAX_COPIES) copies = MAX_COPIES;
    if (copies == 0) {
        cudaMemsetAsync(counts, 0, sizeof(int) * bins);
        count_global<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(keys, counts, n);
        return;
    }
    int needed = (n + 4 * BLOCK - 1) / (4 * BLOCK);
    int blocks = needed < BLOCKS ? needed : BLOCKS;
    int* partial = nullptr;
    cudaMalloc(&partial, sizeof(int) * (size_t)blocks * bins);
    count<<<blocks, BLOCK, sizeof(int) * bins * copies>>>(keys, partial, n, bins, copies);
    merge<<<(bins + 31) / 32, dim3(32, 32)>>>(partial, counts, blocks, bins);
    cudaFree(partial);
}
