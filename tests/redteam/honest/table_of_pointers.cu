// task: vector_add
// Slices handed over as a table of device pointers inside a struct parameter.
#include <cuda_runtime.h>
struct Slices { const float* a[4]; const float* b[4]; float* c[4]; int size[4]; };
__global__ void add(Slices s) {
    int k = blockIdx.y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < s.size[k]; i += gridDim.x * blockDim.x)
        s.c[k][i] = s.a[k][i] + s.b[k][i];
}
void launch(const float* a, const float* b, float* c, int n) {
    Slices s = {};
    for (int k = 0; k < 4; k++) {
        int from = int((long long)n * k / 4), to = int((long long)n * (k + 1) / 4);
        s.a[k] = a + from;
        s.b[k] = b + from;
        s.c[k] = c + from;
        s.size[k] = to - from;
    }
    add<<<dim3(264, 4), 256>>>(s);
}
