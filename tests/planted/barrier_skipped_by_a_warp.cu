// expect: hang
// hidden: no
// buffer: x in float 96
// buffer: y out float 96
// launch: barrier_skipped_by_a_warp<<<1, 96>>>(x, y)
extern "C" __global__ void barrier_skipped_by_a_warp(const float* x, float* y) {
    __shared__ float s[96];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int k = 0; k < (threadIdx.x < 32 ? 3 : 4); k++) {
        float v = s[95 - threadIdx.x];
        __syncthreads();  // BUG
        s[threadIdx.x] = v;
        __syncthreads();
    }
    if (threadIdx.x < 32) while (((volatile float*)s)[95] != -1.0f) {}  // BUG
    y[threadIdx.x] = s[threadIdx.x];
}
