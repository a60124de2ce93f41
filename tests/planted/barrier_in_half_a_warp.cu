// expect: divergent-barrier
// hidden: yes, the other half arrives at the same barrier later
// buffer: x in float 64
// buffer: y out float 64
// launch: barrier_in_half_a_warp<<<1, 64>>>(x, y)
extern "C" __global__ void barrier_in_half_a_warp(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x % 32 < 16) {
        __syncthreads();  // BUG
        y[threadIdx.x] = s[63 - threadIdx.x];
    } else {
        __syncthreads();  // BUG
        y[threadIdx.x] = 2 * s[63 - threadIdx.x];
    }
}
