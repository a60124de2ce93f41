// expect: divergent-barrier
// hidden: no
// buffer: x in float 128
// buffer: y out float 128
// launch: barrier_named_with_wrong_count<<<1, 128>>>(x, y)
extern "C" __global__ void barrier_named_with_wrong_count(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 96;" ::: "memory");  // BUG
}
