// expect: race
// hidden: yes, the first warp is usually the last to get there
// buffer: x in float 256
// buffer: y out float 1
// launch: race_warp_sums_read_early<<<1, 256>>>(x, y)
extern "C" __global__ void race_warp_sums_read_early(const float* x, float* y) {
    __shared__ float part[8];
    float v = x[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    if (threadIdx.x < 32) {
        v = threadIdx.x < 8 ? part[threadIdx.x] : 0.0f;  // BUG
        for (int d = 4; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
        if (threadIdx.x == 0) *y = v;
    }
}
