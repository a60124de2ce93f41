// expect: out-of-bounds
// hidden: no
// buffer: x in float 256
// buffer: y out float 256
// launch: bounds_64_bit_index<<<1, 256>>>(x, y)
extern "C" __global__ void bounds_64_bit_index(const float* x, float* y) {
    unsigned i = threadIdx.x - 1u;
    y[threadIdx.x] = x[i];  // BUG
}
