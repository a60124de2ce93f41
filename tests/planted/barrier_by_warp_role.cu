// expect: divergent-barrier
// hidden: yes, the hardware counts arrivals, whichever barrier they are at
// buffer: x in float 64
// buffer: y out float 64
// launch: barrier_by_warp_role<<<1, 64>>>(x, y)
extern "C" __global__ void barrier_by_warp_role(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 32) {
        __syncthreads();  // BUG
        y[threadIdx.x] = s[63 - threadIdx.x];
    } else {
        __syncthreads();  // BUG
        y[threadIdx.x] = s[threadIdx.x] + s[0];
    }
}
