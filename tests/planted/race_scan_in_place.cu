// expect: race
// hidden: no
// buffer: x in float 128
// buffer: y out float 128
// launch: race_scan_in_place<<<1, 128>>>(x, y)
extern "C" __global__ void race_scan_in_place(const float* x, float* y) {
    __shared__ float s[128];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    for (int step = 1; step < 128; step *= 2) {
        float left = t >= step ? s[t - step] : 0.0f;
        s[t] += left;  // BUG
        __syncthreads();
    }
    y[t] = s[t];
}
