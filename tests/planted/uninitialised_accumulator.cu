// expect: uninitialised
// hidden: yes, fresh memory is zero
// buffer: x in float 512
// buffer: y out float 128
// launch: uninitialised_accumulator<<<1, 128>>>(x, y)
extern "C" __global__ void uninitialised_accumulator(const float* x, float* y) {
    for (int k = 0; k < 4; k++) y[threadIdx.x] += x[k * 128 + threadIdx.x];  // BUG
}
