// expect: race
// hidden: no
// buffer: x in float 260
// buffer: y out float 260
// launch: race_overlapping_outputs<<<4, 65>>>(x, y)
extern "C" __global__ void race_overlapping_outputs(const float* x, float* y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    y[i] = x[i] + blockIdx.x;  // BUG
}
