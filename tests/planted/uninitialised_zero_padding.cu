// expect: uninitialised
// hidden: yes, left-overs are often zero
// buffer: x in float 128
// buffer: y out float 128
// launch: uninitialised_zero_padding<<<1, 128>>>(x, y)
extern "C" __global__ void uninitialised_zero_padding(const float* x, float* y) {
    __shared__ float s[130];
    s[threadIdx.x + 1] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 1] + s[threadIdx.x + 2];  // BUG
}
