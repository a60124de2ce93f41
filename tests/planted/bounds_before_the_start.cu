// expect: out-of-bounds
// hidden: yes, something else lies there
// buffer: x in float 256
// buffer: y out float 256
// launch: bounds_before_the_start<<<1, 256>>>(x, y)
extern "C" __global__ void bounds_before_the_start(const float* x, float* y) {
    int i = threadIdx.x;
    y[i] = x[i - 1] + x[i];  // BUG
}
