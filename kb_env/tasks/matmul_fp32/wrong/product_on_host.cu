// expect: REFUSED
// Harness cheat: the product is computed by the host, outside any kernel's time.
#include <cuda_runtime.h>
#include <stdlib.h>

__global__ void decoy() {}

void launch(const float* a, const float* b, float* c, int m, int n, int k) {
    float* x = (float*)malloc(sizeof(float) * m * k);
    float* y = (float*)malloc(sizeof(float) * k * n);
    float* z = (float*)malloc(sizeof(float) * m * n);
    cudaMemcpy(x, a, sizeof(float) * m * k, cudaMemcpyDeviceToHost);
    cudaMemcpy(y, b, sizeof(float) * k * n, cudaMemcpyDeviceToHost);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int h = 0; h < k; ++h) sum += x[i * k + h] * y[h * n + j];
            z[i * n + j] = sum;
        }
    cudaMemcpy(c, z, sizeof(float) * m * n, cudaMemcpyHostToDevice);
    decoy<<<1, 1>>>();
    free(x);
    free(y);
    free(z);
}
