// task: vector_add
// Loads of four floats with a scalar tail.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 3 < n) {
        float4 p = *reinterpret_cast<const float4*>(a + i), q = *reinterpret_cast<const float4*>(b + i);
        *reinterpret_cast<float4*>(c + i) = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
    } else {
        for (; i < n; i++) c[i] = a[i] + b[i];
    }
}
void launch(const float* a, const float* b, float* c, int n) { add<<<(n + 1023) / 1024, 256>>>(a, b, c, n); }
