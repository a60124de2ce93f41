// expect: uninitialised
// hidden: yes, left-overs are often zero
// buffer: x in float 200
// buffer: y out float 1
// launch: uninitialised_shared_tail<<<1, 256>>>(x, y, 200)
extern "C" __global__ void uninitialised_shared_tail(const float* x, float* y, int n) {
    __shared__ float s[256];
    int t = threadIdx.x;
    if (t < n) s[t] = x[t];
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step) s[t] += s[t + step];  // BUG
        __syncthreads();
    }
    if (t == 0) *y = s[0];
}
