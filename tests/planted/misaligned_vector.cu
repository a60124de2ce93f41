// expect: misaligned
// hidden: no
// buffer: x in float 260
// buffer: y out float 256
// launch: misaligned_vector<<<1, 64>>>(x, y)
extern "C" __global__ void misaligned_vector(const float* x, float* y) {
    for (int k = 0; k < 4; k++) y[4 * threadIdx.x + k] = 0.0f;
    *(float4*)(y + 2 * threadIdx.x) = make_float4(x[0], x[1], x[2], x[threadIdx.x]);  // BUG
}
