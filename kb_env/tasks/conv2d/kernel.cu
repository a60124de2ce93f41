// 3 x 3 convolution, one thread per output element, everything read from global memory.
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void conv(const float* x, const float* w, float* y, int in_channels, int out_channels, int height,
                     int width, size_t total) {
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= total) return;
    const int col = index % width;
    const int row = index / width % height;
    const int out = index / width / height % out_channels;
    const size_t image = index / width / height / out_channels;
    float sum = 0.0f;
    for (int c = 0; c < in_channels; ++c) {
        const float* plane = x + (image * in_channels + c) * height * width;
        const float* taps = w + (out * in_channels + c) * 9;
        for (int p = 0; p < 3; ++p) {
            for (int q = 0; q < 3; ++q) {
                const int i = row + p - 1;
                const int j = col + q - 1;
                if (i >= 0 && i < height && j >= 0 && j < width) sum += taps[p * 3 + q] * plane[i * width + j];
            }
        }
    }
    y[index] = sum;
}

void launch(const float* x, const float* w, float* y, int batch, int in_channels, int out_channels, int height,
            int width) {
    const size_t total = (size_t)batch * out_channels * height * width;
    conv<<<(total + BLOCK - 1) / BLOCK, BLOCK>>>(x, w, y, in_channels, out_channels, height, width, total);
}
