// expect: race
// hidden: yes, warps mostly pass in order
// buffer: x in float 256
// buffer: y out float 256
// launch: race_missing_barrier_after_load<<<1, 256>>>(x, y)
extern "C" __global__ void race_missing_barrier_after_load(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[255 - threadIdx.x];  // BUG
}
