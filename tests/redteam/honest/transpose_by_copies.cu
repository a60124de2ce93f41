// task: transpose
// Row copies where a transpose is only a copy (one row or column), a kernel elsewhere.
#include <cuda_runtime.h>
__global__ void transpose(const float* x, float* y, int rows, int cols) {
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (r < rows && c < cols) y[(size_t)c * rows + r] = x[(size_t)r * cols + c];
}
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
void launch(const float* x, float* y, int rows, int cols) {
    if (rows == 1 || cols == 1) copy<<<(rows * cols + 255) / 256, 256>>>(x, y, rows * cols);
    else transpose<<<dim3((cols + 31) / 32, (rows + 7) / 8), dim3(32, 8)>>>(x, y, rows, cols);
}
