// expect: uninitialised
// hidden: yes, the value is not used further
// buffer: x in float 64
// buffer: w out float 128
// buffer: y out float 64
// launch: uninitialised_half_of_a_struct<<<1, 64>>>(x, w, y)
extern "C" __global__ void uninitialised_half_of_a_struct(const float* x, float* w, float* y) {
    w[2 * threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float2 pair = *(const float2*)(w + 2 * (63 - threadIdx.x));  // BUG
    y[threadIdx.x] = pair.x + 0 * pair.y;
}
