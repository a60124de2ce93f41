// The harness's own kernels. kernels.ptx beside this file is made from it:
//   nvcc -ptx -arch=compute_75 -o kernels.ptx kernels.cu
#include <cuda_runtime.h>

// Reads a buffer of at least twice the L2, so that every line of the cache is replaced by a clean one.
// The sum goes out, which also makes this the known kernel that a new runner proves itself with.
extern "C" __global__ void kb_read(const uint4* data, unsigned long long count, unsigned int* sum) {
    unsigned int total = 0;
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint4 v = data[i];
        total += v.x + v.y + v.z + v.w;
    }
    for (int lane = 16; lane > 0; lane /= 2) total += __shfl_xor_sync(0xffffffffu, total, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, total);
}

// Overwrites the shared memory that an earlier kernel may have left something in.
extern "C" __global__ void kb_scrub(unsigned int words, unsigned int pattern) {
    extern __shared__ volatile unsigned int shared[];
    for (unsigned int i = threadIdx.x; i < words; i += blockDim.x) shared[i] = pattern;
}

// Keeps the GPU busy while the host queues the timed work behind it.
extern "C" __global__ void kb_spin(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
