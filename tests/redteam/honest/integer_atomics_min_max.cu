// task: softmax
// The maximum by integer atomics on ordered float bits in workspace that a kernel sets up.
#include <cuda_runtime.h>
#include <math.h>
__device__ int order(float v) { int b = __float_as_int(v); return b >= 0 ? b : b ^ 0x7fffffff; }
__device__ float back(int b) { return __int_as_float(b >= 0 ? b : b ^ 0x7fffffff); }
__global__ void setup(int* top, float* sum, int rows) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < rows) {
        top[r] = order(-INFINITY);
        sum[r] = 0.0f;
    }
}
__global__ void highest(const float* x, int* top, int cols) {
    float v = -INFINITY;
    for (int c = blockIdx.y * 128 + threadIdx.x; c < cols; c += gridDim.y * 128) v = fmaxf(v, x[(size_t)blockIdx.x * cols + c]);
    for (int s = 16; s > 0; s /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, s));
    if (threadIdx.x % 32 == 0) atomicMax(&top[blockIdx.x], order(v));
}
__global__ void total(const float* x, const int* top, float* sum, int cols) {
    float v = 0, high = back(top[blockIdx.x]);
    for (int c = blockIdx.y * 128 + threadIdx.x; c < cols; c += gridDim.y * 128) v += expf(x[(size_t)blockIdx.x * cols + c] - high);
    for (int s = 16; s > 0; s /= 2) v += __shfl_xor_sync(~0u, v, s);
    if (threadIdx.x % 32 == 0) atomicAdd(&sum[blockIdx.x], v);
}
__global__ void result(const float* x, const int* top, const float* sum, float* y, int cols) {
    float high = back(top[blockIdx.x]);
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[(size_t)blockIdx.x * cols + c] = expf(x[(size_t)blockIdx.x * cols + c] - high) / sum[blockIdx.x];
}
void launch(const float* x, float* y, int rows, int cols) {
    int* top;
    float* sum;
    cudaMalloc(&top, sizeof(int) * rows);
    cudaMalloc(&sum, sizeof(float) * rows);
    setup<<<(rows + 255) / 256, 256>>>(top, sum, rows);
    highest<<<dim3(rows, 2), 128>>>(x, top, cols);
    total<<<dim3(rows, 2), 128>>>(x, top, sum, cols);
    result<<<rows, 256>>>(x, top, sum, y, cols);
    cudaFree(top);
    cudaFree(sum);
}
