// 3 x 3 convolution, a block makes 32 output channels of an 8 x 32 pixel tile, a thread 8 channels of 8
// neighbouring pixels in registers. Four input channels and their taps at a time come to shared memory
// by asynchronous copies, one buffer ahead.
#include <cuda_runtime.h>

constexpr int CHANNELS = 4;  // input channels per step, one per warp when loading
constexpr int OUTS = 32;     // output channels per block, 8 per warp
constexpr int ROWS = 8;
constexpr int COLS = 32;
constexpr int STRIDE = COLS + 4;     // 34 columns are used; rows start 4 banks apart
constexpr int OUT_STRIDE = OUTS + 4;
constexpr int THREADS = 128;

// Copies one float from global to shared memory without waiting; zero where `valid` is false.
__device__ void copy_async(float* target, const float* source, bool valid) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source), "r"(bytes) : "memory");
}

__global__ void __launch_bounds__(THREADS, 4)
conv(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int in_channels,
     int out_channels, int height, int width) {
    __shared__ __align__(16) float tile[2][CHANNELS][ROWS + 2][STRIDE];
    __shared__ __align__(16) float taps[2][CHANNELS * 9][OUT_STRIDE];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int groups = (out_channels + OUTS - 1) / OUTS;
    const int first_out = blockIdx.z % groups * OUTS;
    const size_t image = blockIdx.z / groups;
    const int row0 = blockIdx.y * ROWS, col0 = blockIdx.x * COLS;

    auto load = [&](int step) {
        const int buffer = step % 2, first = step * CHANNELS;
        const bool channel = first + warp < in_channels;
        const float* plane = x + (image * in_channels + first + warp) * height * width;
#pragma unroll
        for (int r = 0; r < ROWS + 2; ++r) {
            const int i = row0 + r - 1, j = col0 + lane - 1;
            const bool valid = channel && i >= 0 && i < height && j >= 0 && j < width;
            copy_async(&tile[buffer][warp][r][lane], valid ? plane + i * width + j : x, valid);
        }
        if (lane < 2 * (ROWS + 2)) {  // the two columns beyond the warp's 32
            const int r = lane / 2, i = row0 + r - 1, j = col0 + 31 + lane % 2;
            const bool valid = channel && i >= 0 && i < height && j < width;
            copy_async(&tile[buffer][warp][r][32 + lane % 2], valid ? plane + i * width + j : x, valid);
        }
        const int out = first_out + tid / 4, c = first + tid % 4;
        const bool valid = out < out_channels && c < in_channels;
        const float* source = valid ? w + (out * in_channels + c) * 9 : w;
#pragma unroll
        for (int i = 0; i < 9; ++i)
            copy_async(&taps[buffer][tid % 4 * 9 + i][tid / 4], source + (valid ? i : 0), valid);
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

    const int row = lane / 4, segment = lane % 4 * 8;
    const int steps = (in_channels + CHANNELS - 1) / CHANNELS;
    float acc[8][8] = {};  // output channel, pixel
    load(0);
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (step + 1 < steps) load(step + 1);
        const int buffer = step % 2;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll
            for (int p = 0; p < 3; ++p) {
                float v[10];
                const float* in = &tile[buffer][c][row + p][segment];
                *(float4*)v = *(const float4*)in;
                *(float4*)(v + 4) = *(const float4*)(in + 4);
                *(float2*)(v + 8) = *(const float2*)(in + 8);
#pragma unroll
                for (int q = 0; q < 3; ++q) {
                    float k[8];
                    const float* tap = &taps[buffer][c * 9 + p * 3 + q][warp * 8];
                    *(float4*)k = *(const float4*)tap;
                    *(float4*)(k + 4) = *(const float4*)(tap + 4);
#pragma unroll
                    for (int o = 0; o < 8; ++o)
#pragma unroll
                        for (int s = 0; s < 8; ++s) acc[o][s] += k[o] * v[s + q];
                }
            }
        }
    }

    if (row0 + row >= height) return;
#pragma unroll
    for (int o = 0; o < 8; ++o) {
        const int out = first_out + warp * 8 + o;
        if (out >= out_channels) return;
        float* target = y + ((image * out_channels + out) * height + row0 + row) * width + col0 + segment;
        if (width % 4 == 0) {
#pragma unroll
            for (int s = 0; s < 8; s += 4)
                if (col0 + segment + s < width)
                    *(float4*)(target + s) = make_float4(acc[o][s], acc[o][s + 1], acc[o][s + 2], acc[o][s + 3]);
        } else {
#pragma unroll
            for (int s = 0; s < 8; ++s)
                if (col0 + segment + s < width) target[s] = acc[o][s];
        }
    }
}

void launch(const float* x, const float* w, float* y, int batch, int in_channels, int out_channels, int height,
            int width) {
    const int groups = (out_channels + OUTS - 1) / OUTS;
    const dim3 grid((width + COLS - 1) / COLS, (height + ROWS - 1) / ROWS, batch * groups);
    conv<<<grid, THREADS>>>(x, w, y, in_channels, out_channels, height, width);
}
