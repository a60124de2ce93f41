// expect: race
// hidden: yes, loads take longer than the reads of the other half
// buffer: x in float 1024
// buffer: y out float 128
// launch: race_double_buffer_one_barrier_short<<<1, 128>>>(x, y)
extern "C" __global__ void race_double_buffer_one_barrier_short(const float* x, float* y) {
    __shared__ float s[2][128];
    float sum = 0;
    s[0][threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 8; k++) {
        if (k + 1 < 8) s[(k + 1) & 1][threadIdx.x] = x[(k + 1) * 128 + threadIdx.x];
        sum += s[k & 1][127 - threadIdx.x];  // BUG
        if (k & 1) __syncthreads();
    }
    y[threadIdx.x] = sum;
}
