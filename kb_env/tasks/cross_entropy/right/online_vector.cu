// Cross entropy, one block per row, one pass: each thread keeps a running maximum and a sum scaled to
// it, and reads 4 x 16 bytes at a time.
#include <cuda_runtime.h>
#include <math.h>

constexpr int BLOCK = 512;
constexpr int QUADS = 4;  // independent 16-byte loads in flight per thread
constexpr float LOG2E = 1.4426950408889634f;

struct Running {
    float largest;
    float sum;  // of exp(x - largest)
};

__device__ Running join(Running a, Running b) {
    const float largest = fmaxf(a.largest, b.largest);
    if (largest == -INFINITY) return a;
    return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

template <int COUNT>
__device__ void add(Running& state, const float (&x)[COUNT]) {
    float largest = state.largest;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) largest = fmaxf(largest, x[i]);
    float sum = state.sum * exp2f((state.largest - largest) * LOG2E);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum += exp2f((x[i] - largest) * LOG2E);
    state = {largest, sum};
}

__global__ void __launch_bounds__(BLOCK)
cross_entropy(const float* __restrict__ logits, const int* __restrict__ labels, float* loss, int cols) {
    __shared__ Running parts[BLOCK / 32];
    const float* in = logits + (size_t)blockIdx.x * cols;
    Running state = {-INFINITY, 0.0f};
    int done = 0;
    if (cols % 4 == 0) {
        constexpr int STEP = BLOCK * 4 * QUADS;
        for (; done + STEP <= cols; done += STEP) {
            float x[4 * QUADS];
#pragma unroll
            for (int i = 0; i < QUADS; ++i)
                *(float4*)(x + 4 * i) = __ldcs((const float4*)(in + done) + threadIdx.x + BLOCK * i);
            add(state, x);
        }
        for (int c = done + threadIdx.x * 4; c < cols; c += BLOCK * 4) {
            float x[4];
            *(float4*)x = __ldcs((const float4*)(in + c));
            add(state, x);
        }
    } else {
        for (int c = threadIdx.x; c < cols; c += BLOCK) {
            const float x[1] = {in[c]};
            add(state, x);
        }
    }
    for (int step = 16; step > 0; step /= 2)
        state = join(state, {__shfl_xor_sync(0xffffffffu, state.largest, step),
                             __shfl_xor_sync(0xffffffffu, state.sum, step)});
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = state;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < BLOCK / 32; ++i) state = join(state, parts[i]);
        loss[blockIdx.x] = logf(state.sum) + (state.largest - in[labels[blockIdx.x]]);
    }
}

void launch(const float* logits, const int* labels, float* loss, int rows, int cols) {
    cross_entropy<<<rows, BLOCK>>>(logits, labels, loss, cols);
}
