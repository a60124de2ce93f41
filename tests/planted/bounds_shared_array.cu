// expect: out-of-bounds
// hidden: yes, blocks get shared memory in larger pieces
// buffer: x in float 256
// buffer: y out float 256
// launch: bounds_shared_array<<<1, 256, 1020>>>(x, y)
extern "C" __global__ void bounds_shared_array(const float* x, float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];  // BUG
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
