// Depthwise 3 x 3 convolution, each thread a strip 4 columns wide and 8 rows deep in registers: each
// input row is read once a strip (16 bytes and two neighbours) and enters three sums.
#include <cuda_runtime.h>

constexpr int DEEP = 8;
constexpr int THREADS = 128;

// Elements col - 1 .. col + 4 of one row; zeros outside the image.
template <bool VECTOR>
__device__ void read_row(const float* row, bool inside, int col, int width, float (&v)[6]) {
    if (VECTOR) {
        const float4 middle = inside ? __ldg((const float4*)(row + col)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        v[1] = middle.x;
        v[2] = middle.y;
        v[3] = middle.z;
        v[4] = middle.w;
    } else {
#pragma unroll
        for (int i = 1; i < 5; ++i) v[i] = inside && col + i - 1 < width ? row[col + i - 1] : 0.0f;
    }
    v[0] = inside && col > 0 ? __ldg(row + col - 1) : 0.0f;
    v[5] = inside && col + 4 < width ? __ldg(row + col + 4) : 0.0f;
}

// VECTOR: width is a multiple of 4.
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS)
depthwise(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int channels, int height,
          int width, int strips_across, int strips_down, int strips) {
    const int strip = blockIdx.x * THREADS + threadIdx.x;
    if (strip >= strips) return;
    const int col = strip % strips_across * 4;
    const int row0 = strip / strips_across % strips_down * DEEP;
    const int plane = strip / strips_across / strips_down;
    const float* image = x + (size_t)plane * height * width;
    float* out = y + (size_t)plane * height * width;
    float weight[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) weight[i] = __ldg(w + plane % channels * 9 + i);

    float v[DEEP + 2][6];
#pragma unroll
    for (int i = 0; i < DEEP + 2; ++i) {
        const int r = row0 + i - 1;
        read_row<VECTOR>(image + (ptrdiff_t)r * width, r >= 0 && r < height, col, width, v[i]);
    }
#pragma unroll
    for (int i = 0; i < DEEP; ++i) {
        if (row0 + i >= height) return;
        float sum[4] = {};
#pragma unroll
        for (int p = 0; p < 3; ++p)
#pragma unroll
            for (int q = 0; q < 3; ++q)
#pragma unroll
                for (int s = 0; s < 4; ++s) sum[s] += weight[p * 3 + q] * v[i + p][s + q];
        float* target = out + (size_t)(row0 + i) * width + col;
        if (VECTOR) {
            *(float4*)target = make_float4(sum[0], sum[1], sum[2], sum[3]);
        } else {
#pragma unroll
            for (int s = 0; s < 4; ++s)
                if (col + s < width) target[s] = sum[s];
        }
    }
}

void launch(const float* x, const float* w, float* y, int batch, int channels, int height, int width) {
    const int across = (width + 3) / 4, down = (height + DEEP - 1) / DEEP;
    const int strips = batch * channels * across * down;
    const int grid = (strips + THREADS - 1) / THREADS;
    if (width % 4 == 0)
        depthwise<true><<<grid, THREADS>>>(x, w, y, channels, height, width, across, down, strips);
    else
        depthwise<false><<<grid, THREADS>>>(x, w, y, channels, height, width, across, down, strips);
}
