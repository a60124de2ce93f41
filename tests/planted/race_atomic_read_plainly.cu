// expect: race
// hidden: yes, the bins are complete by then in most runs
// buffer: x in int 256
// buffer: y out int 32
// launch: race_atomic_read_plainly<<<1, 256>>>(x, y)
extern "C" __global__ void race_atomic_read_plainly(const int* x, int* y) {
    __shared__ int bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&bins[x[threadIdx.x] & 31], 1);
    if (threadIdx.x >= 224) y[threadIdx.x - 224] = bins[threadIdx.x - 224];  // BUG
}
