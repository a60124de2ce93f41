// expect: race
// hidden: no
// buffer: x in int 512
// buffer: y zero int 16
// launch: race_shared_histogram<<<1, 128>>>(x, y)
extern "C" __global__ void race_shared_histogram(const int* x, int* y) {
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 128) bins[x[i] & 15]++;  // BUG
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&y[threadIdx.x], bins[threadIdx.x]);
}
