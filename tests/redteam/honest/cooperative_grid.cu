// task: row_sum
// A cooperative launch with a barrier over the grid between two phases.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
__global__ void sums(const float* x, float* part, float* y, int rows, int cols) {
    auto grid = cooperative_groups::this_grid();
    int lanes = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * 32; i += lanes) {
        float sum = 0;
        for (int c = i % 32; c < cols; c += 32) sum += x[(size_t)(i / 32) * cols + c];
        part[i] = sum;
    }
    grid.sync();
    for (int r = blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += lanes) {
        float sum = 0;
        for (int k = 0; k < 32; k++) sum += part[r * 32 + k];
        y[r] = sum;
    }
}
void launch(const float* x, float* y, int rows, int cols) {
    float* part;
    int per_sm = 0;
    cudaDeviceProp prop;
    cudaGetDeviceProperties(&prop, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, sums, 256, 0);
    cudaMalloc(&part, sizeof(float) * rows * 32);
    void* arguments[] = {&x, &part, &y, &rows, &cols};
    cudaLaunchCooperativeKernel(reinterpret_cast<void*>(sums), dim3(per_sm * prop.multiProcessorCount), dim3(256), arguments, 0, 0);
    cudaFree(part);
}
