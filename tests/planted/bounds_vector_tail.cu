// expect: out-of-bounds
// hidden: yes, allocations are rounded up
// buffer: x in float 1002
// buffer: y out float 1002
// launch: bounds_vector_tail<<<1, 256>>>(x, y)
extern "C" __global__ void bounds_vector_tail(const float* x, float* y) {
    int i = 4 * threadIdx.x;
    if (i < 1002) *(float4*)(y + i) = *(const float4*)(x + i);  // BUG
}
