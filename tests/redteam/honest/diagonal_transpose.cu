// task: transpose
// Tiles in diagonal order through padded shared memory.
#include <cuda_runtime.h>
__global__ void transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int bx = (blockIdx.x + blockIdx.y) % gridDim.x, by = blockIdx.y;
    int c = bx * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (by * 32 + i < rows && c < cols) tile[i][threadIdx.x] = x[(size_t)(by * 32 + i) * cols + c];
    __syncthreads();
    int r = by * 32 + threadIdx.x;
    for (int i = threadIdx.y; i < 32; i += 8)
        if (bx * 32 + i < cols && r < rows) y[(size_t)(bx * 32 + i) * rows + r] = tile[threadIdx.x][i];
}
void launch(const float* x, float* y, int rows, int cols) {
    transpose<<<dim3((cols + 31) / 32, (rows + 31) / 32), dim3(32, 8)>>>(x, y, rows, cols);
}
