// expect: race
// hidden: yes, the bins are cleared before the other warps have loaded
// buffer: x in int 512
// buffer: y zero int 64
// launch: race_histogram_cleared_late<<<1, 128>>>(x, y)
extern "C" __global__ void race_histogram_cleared_late(const int* x, int* y) {
    __shared__ int bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < 512; i += 128) atomicAdd(&bins[x[i] & 63], 1);  // BUG
    __syncthreads();
    if (threadIdx.x < 64) y[threadIdx.x] = bins[threadIdx.x];
}
