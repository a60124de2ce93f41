// expect: race
// hidden: yes, flag and value seldom overtake each other
// buffer: x in float 256
// buffer: total out float 4
// buffer: ready zero int 4
// buffer: y out float 4
// launch: race_look_back_without_fence<<<4, 64>>>(x, total, ready, y)
extern "C" __global__ void race_look_back_without_fence(const float* x, float* total, int* ready, float* y) {
    if (threadIdx.x > 0) return;
    float sum = 0;
    for (int k = 0; k < 64; k++) sum += x[blockIdx.x * 64 + k];
    if (blockIdx.x > 0) {
        while (atomicAdd(&ready[blockIdx.x - 1], 0) == 0) {}
        sum += total[blockIdx.x - 1];  // BUG
    }
    total[blockIdx.x] = sum;
    atomicExch(&ready[blockIdx.x], 1);
    y[blockIdx.x] = sum;
}
