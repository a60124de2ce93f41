// expect: missing-wait
// hidden: yes, the copy is often there in time
// buffer: x in float 512
// buffer: y out float 256
// launch: wait_for_one_group_too_few<<<1, 64>>>(x, y)
extern "C" __global__ void wait_for_one_group_too_few(const float* x, float* y) {
    __shared__ __align__(16) float s[2][256];
    for (int k = 0; k < 2; k++) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[k][4 * threadIdx.x]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + k * 256 + 4 * threadIdx.x) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    for (int k = 0; k < 4; k++) {
        int i = 255 - (4 * threadIdx.x + k);
        y[i] = s[0][i] + s[1][i];  // BUG
    }
}
