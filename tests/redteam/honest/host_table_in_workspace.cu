// task: gelu
// Parameters in a host vector, uploaded to workspace with an asynchronous copy.
#include <cuda_runtime.h>
#include <vector>
__global__ void gelu(const float* x, float* y, int n, const float* p) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = p[0] * x[i] * (p[1] + erff(x[i] * p[2]));
}
void launch(const float* x, float* y, int n) {
    std::vector<float> host = {0.5f, 1.0f, 0.70710678f};
    float* device;
    cudaMallocAsync(reinterpret_cast<void**>(&device), host.size() * sizeof(float), nullptr);
    cudaMemcpyAsync(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice, nullptr);
    gelu<<<(n + 255) / 256, 256>>>(x, y, n, device);
    cudaFreeAsync(device, nullptr);
}
