// expect: out-of-bounds
// hidden: yes, allocations are rounded up
// buffer: x in float 1000
// buffer: y out float 1000
// launch: bounds_no_tail_check<<<4, 256>>>(x, y)
extern "C" __global__ void bounds_no_tail_check(const float* x, float* y) {
    int i = blockIdx.x * 256 + threadIdx.x;
    y[i] = x[i] * 2;  // BUG
}
