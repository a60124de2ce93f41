// expect: race
// hidden: yes, the second tile comes long after the first was read
// buffer: x in float 1024
// buffer: y out float 256
// launch: race_tile_reused<<<1, 256>>>(x, y)
extern "C" __global__ void race_tile_reused(const float* x, float* y) {
    __shared__ float tile[256];
    float sum = 0;
    for (int k = 0; k < 4; k++) {
        tile[threadIdx.x] = x[k * 256 + threadIdx.x];  // BUG
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += tile[(threadIdx.x + 37 * j) % 256];
    }
    y[threadIdx.x] = sum;
}
