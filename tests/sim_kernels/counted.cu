// Kernels whose counters for the time model are known by hand.

// Each warp reads one line twice, a second one in between; then every warp reads the block's first line.
extern "C" __global__ void reuse(const float* x, float* y) {
    int w = threadIdx.x / 32, l = threadIdx.x % 32;
    const volatile float* mine = x + (blockIdx.x * 4 + w) * 64;
    float sum = mine[l];
    sum += mine[32 + l];
    sum += mine[l];
    const volatile float* first = x + blockIdx.x * 256;
    sum += first[l];
    y[blockIdx.x * 128 + threadIdx.x] = sum;
}

// Lanes 16 words apart: 32 lines a load.
extern "C" __global__ void scattered(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x * 32]; }

// All lanes of 64 threads on word 3, each on a word of its own beside.
extern "C" __global__ void hot(unsigned* bins) {
    atomicAdd(bins + 8 + threadIdx.x, threadIdx.x);
    atomicAdd(bins + (threadIdx.x < 64 ? 3 : 4), threadIdx.x + 1);
}
