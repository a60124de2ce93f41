// task: vector_add
// Copies an input to workspace device to device, adds in place there, copies the result out.
#include <cuda_runtime.h>
__global__ void accumulate(float* w, const float* b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) w[i] += b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    float* w = nullptr;
    if (cudaMalloc(&w, sizeof(float) * n) != cudaSuccess) return;
    cudaMemcpyAsync(w, a, sizeof(float) * n, cudaMemcpyDeviceToDevice, 0);
    accumulate<<<(n + 255) / 256, 256>>>(w, b, n);
    cudaMemcpyAsync(c, w, sizeof(float) * n, cudaMemcpyDeviceToDevice, 0);
    cudaFree(w);
}
