// expect: out-of-bounds
// hidden: yes, allocations are rounded up
// buffer: x in float 1000
// buffer: y out float 1000
// launch: bounds_one_past_the_end<<<4, 256>>>(x, y, 1000)
extern "C" __global__ void bounds_one_past_the_end(const float* x, float* y, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i <= n) y[i] = x[i];  // BUG
}
