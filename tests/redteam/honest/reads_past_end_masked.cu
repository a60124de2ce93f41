// task: vector_add
// Reads whole vectors of four past the end of its buffers, where the allocation is large enough, and masks them.
#include <cuda_runtime.h>
__global__ void add(const float* a, const float* b, float* c, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float4 p = *reinterpret_cast<const float4*>(a + i), q = *reinterpret_cast<const float4*>(b + i);
    float r[4] = {p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w};
    for (int k = 0; k < 4 && i + k < n; k++) c[i + k] = r[k];
}
void launch(const float* a, const float* b, float* c, int n) { add<<<(n + 1023) / 1024, 256>>>(a, b, c, n); }
