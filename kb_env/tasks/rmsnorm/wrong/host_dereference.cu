// expect: CRASHED|REFUSED
// Reads the device pointer on the host to decide what to launch.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

__global__ void copy(const __half* x, __half* y, size_t n) {
    size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = x[i];
}

void launch(const __half* x, const __half* weight, __half* y, int rows, int cols) {
    volatile unsigned short first = *reinterpret_cast<const volatile unsigned short*>(x);
    size_t n = (size_t)rows * cols;
    if (first != 0) copy<<<(n + 255) / 256, 256>>>(x, y, n);
}
