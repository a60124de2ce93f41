// 3 x 3 convolution, a 16 x 16 tile of one input channel at a time in shared memory, each thread one
// pixel of 8 output channels.
#include <cuda_runtime.h>

constexpr int TILE = 16;
constexpr int OUTS = 8;

__global__ void __launch_bounds__(TILE * TILE)
conv(const float* x, const float* w, float* y, int in_channels, int out_channels, int height, int width) {
    __shared__ float tile[TILE + 2][TILE + 2];
    __shared__ float taps[OUTS][9];
    const int groups = (out_channels + OUTS - 1) / OUTS;
    const int first_out = blockIdx.z % groups * OUTS;
    const size_t image = blockIdx.z / groups;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    const int tid = threadIdx.y * TILE + threadIdx.x;
    float sum[OUTS] = {};
    for (int c = 0; c < in_channels; ++c) {
        const float* plane = x + (image * in_channels + c) * height * width;
        for (int item = tid; item < (TILE + 2) * (TILE + 2); item += TILE * TILE) {
            const int i = row0 + item / (TILE + 2) - 1, j = col0 + item % (TILE + 2) - 1;
            const bool inside = i >= 0 && i < height && j >= 0 && j < width;
            tile[item / (TILE + 2)][item % (TILE + 2)] = inside ? plane[i * width + j] : 0.0f;
        }
        if (tid < OUTS * 9) {
            const int out = first_out + tid / 9;
            taps[tid / 9][tid % 9] = out < out_channels ? w[(out * in_channels + c) * 9 + tid % 9] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int p = 0; p < 3; ++p) {
#pragma unroll
            for (int q = 0; q < 3; ++q) {
                const float value = tile[threadIdx.y + p][threadIdx.x + q];
#pragma unroll
                for (int o = 0; o < OUTS; ++o) sum[o] += taps[o][p * 3 + q] * value;
            }
        }
        __syncthreads();
    }
    const int row = row0 + threadIdx.y, col = col0 + threadIdx.x;
    if (row >= height || col >= width) return;
#pragma unroll
    for (int o = 0; o < OUTS; ++o)
        if (first_out + o < out_channels)
            y[((image * out_channels + first_out + o) * height + row) * width + col] = sum[o];
}

void launch(const float* x, const float* w, float* y, int batch, int in_channels, int out_channels, int height,
            int width) {
    const int groups = (out_channels + OUTS - 1) / OUTS;
    const dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, batch * groups);
    conv<<<grid, dim3(TILE, TILE)>>>(x, w, y, in_channels, out_channels, height, width);
}
