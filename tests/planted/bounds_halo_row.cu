// expect: out-of-bounds
// hidden: yes, the value is multiplied by zero
// buffer: x in float 1024
// buffer: y out float 1024
// launch: bounds_halo_row<<<32, 32>>>(x, y)
extern "C" __global__ void bounds_halo_row(const float* x, float* y) {
    int r = blockIdx.x, c = threadIdx.x;
    float edge = r == 31 ? 0.0f : 1.0f;
    y[r * 32 + c] = x[r * 32 + c] + edge * x[(r + 1) * 32 + c];  // BUG
}
