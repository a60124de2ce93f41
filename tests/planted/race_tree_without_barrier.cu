// expect: race
// hidden: no
// buffer: x in float 512
// buffer: y out float 2
// launch: race_tree_without_barrier<<<2, 256>>>(x, y)
extern "C" __global__ void race_tree_without_barrier(const float* x, float* y) {
    __shared__ float s[256];
    s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    for (int step = 128; step > 0; step /= 2)
        if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step];  // BUG
    if (threadIdx.x == 0) y[blockIdx.x] = s[0];
}
