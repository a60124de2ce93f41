// expect: missing-wait
// hidden: yes, the copy is often there in time
// buffer: x in float 256
// buffer: y out float 256
// launch: wait_missing_for_async_copy<<<1, 64>>>(x, y)
extern "C" __global__ void wait_missing_for_async_copy(const float* x, float* y) {
    __shared__ __align__(16) float s[256];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    __syncthreads();
    for (int k = 0; k < 4; k++) y[4 * threadIdx.x + k] = s[4 * threadIdx.x + k];  // BUG
}
