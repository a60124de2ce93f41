// expect: race
// hidden: no
// buffer: x in float 512
// buffer: y out float 512
// launch: race_neighbour_block<<<4, 128>>>(x, y)
extern "C" __global__ void race_neighbour_block(const float* x, float* y) {
    int i = blockIdx.x * 128 + threadIdx.x;
    y[i] = 2 * x[i];
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x > 0) y[i] += y[i - 1];  // BUG
}
