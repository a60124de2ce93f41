// Depthwise 3 x 3 convolution, a 32 x 32 tile with its border in shared memory, four rows a thread.
#include <cuda_runtime.h>

constexpr int TILE = 32;
constexpr int ROWS = 8;  // thread rows; each thread makes TILE / ROWS elements

__global__ void __launch_bounds__(TILE * ROWS)
depthwise(const float* x, const float* w, float* y, int channels, int height, int width) {
    __shared__ float tile[TILE + 2][TILE + 2];
    const size_t plane = blockIdx.z;
    const float* image = x + plane * height * width;
    const float* taps = w + plane % channels * 9;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    const int tid = threadIdx.y * TILE + threadIdx.x;
    for (int item = tid; item < (TILE + 2) * (TILE + 2); item += TILE * ROWS) {
        const int r = row0 + item / (TILE + 2) - 1, c = col0 + item % (TILE + 2) - 1;
        const bool inside = r >= 0 && r < height && c >= 0 && c < width;
        tile[item / (TILE + 2)][item % (TILE + 2)] = inside ? image[r * width + c] : 0.0f;
    }
    float weight[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) weight[i] = taps[i];
    __syncthreads();
    const int col = col0 + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TILE / ROWS; ++i) {
        const int local = threadIdx.y + i * ROWS, row = row0 + local;
        float sum = 0.0f;
#pragma unroll
        for (int p = 0; p < 3; ++p)
#pragma unroll
            for (int q = 0; q < 3; ++q) sum += weight[p * 3 + q] * tile[local + p][threadIdx.x + q];
        if (row < height && col < width) y[plane * height * width + row * width + col] = sum;
    }
}

void launch(const float* x, const float* w, float* y, int batch, int channels, int height, int width) {
    const dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE, batch * channels);
    depthwise<<<grid, dim3(TILE, ROWS)>>>(x, w, y, channels, height, width);
}
