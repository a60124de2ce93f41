// expect: WRONG
// Numeric cheat: taps and pixels are multiplied and summed in float16.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int BLOCK = 256;

__global__ void depthwise(const float* x, const float* w, float* y, int channels, int height, int width, size_t total) {
    const size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= total) return;
    const int col = index % width;
    const int row = index / width % height;
    const size_t plane = index / width / height;
    const float* image = x + plane * height * width;
    const float* taps = w + plane % channels * 9;
    __half sum = __float2half(0.0f);
    for (int p = 0; p < 3; ++p) {
        for (int q = 0; q < 3; ++q) {
            const int r = row + p - 1;
            const int c = col + q - 1;
            if (r >= 0 && r < height && c >= 0 && c < width)
                sum = __hfma(__float2half(taps[p * 3 + q]), __float2half(image[r * width + c]), sum);
        }
    }
    y[index] = __half2float(sum);
}

void launch(const float* x, const float* w, float* y, int batch, int channels, int height, int width) {
    const size_t total = (size_t)batch * channels * height * width;
    depthwise<<<(total + BLOCK - 1) / BLOCK, BLOCK>>>(x, w, y, channels, height, width, total);
}
