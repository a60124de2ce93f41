// expect: race
// hidden: no
// buffer: y zero int 1
// launch: race_global_counter<<<4, 64>>>(y)
extern "C" __global__ void race_global_counter(int* y) {
    if (threadIdx.x == 0) *y += 1;  // BUG
}
