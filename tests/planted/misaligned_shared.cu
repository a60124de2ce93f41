// expect: misaligned
// hidden: no
// buffer: x in float 64
// buffer: y out float 64
// launch: misaligned_shared<<<1, 32, 512>>>(x, y)
extern "C" __global__ void misaligned_shared(const float* x, float* y) {
    extern __shared__ char raw[];
    double* s = (double*)(raw + 4);
    s[threadIdx.x] = x[threadIdx.x];  // BUG
    __syncwarp();
    y[threadIdx.x] = (float)s[31 - threadIdx.x];
}
