// expect: REFUSED
// Brings the vector to the host, computes there and sends the result back: no plan can express that.
#include <cuda_runtime.h>
#include <math.h>

#include <vector>

__global__ void nothing() {}

void launch(const float* x, float* y, int n) {
    std::vector<float> v(n);
    cudaMemcpy(v.data(), x, sizeof(float) * n, cudaMemcpyDeviceToHost);
    for (float& item : v) item = 0.5f * item * (1.0f + erff(item * 0.70710678f));
    cudaMemcpy(y, v.data(), sizeof(float) * n, cudaMemcpyHostToDevice);
    nothing<<<1, 1>>>();
}
