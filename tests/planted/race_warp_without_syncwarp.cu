// expect: race
// hidden: yes, lanes of a warp go in step most of the time
// buffer: x in float 64
// buffer: y out float 1
// launch: race_warp_without_syncwarp<<<1, 32>>>(x, y)
extern "C" __global__ void race_warp_without_syncwarp(const float* x, float* y) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    s[t + 32] = x[t + 32];
    __syncwarp();
    for (int step = 32; step > 0; step /= 2) {
        float other = t < step ? s[t + step] : 0.0f;
        if (t < step) s[t] += other;  // BUG
    }
    if (t == 0) *y = s[0];
}
