// expect: race
// hidden: yes, stores usually arrive before the counter
// buffer: x in float 512
// buffer: part out float 4
// buffer: count zero int 1
// buffer: y out float 1
// launch: race_last_block_without_fence<<<4, 128>>>(x, part, count, y)
extern "C" __global__ void race_last_block_without_fence(const float* x, float* part, int* count, float* y) {
    __shared__ bool last;
    float v = x[blockIdx.x * 128 + threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(~0u, v, d);
    __shared__ float s[4];
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        part[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
        last = atomicAdd(count, 1) == 3;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) *y = part[0] + part[1] + part[2] + part[3];  // BUG
}
