// expect: race
// hidden: yes, the same lane wins on one GPU
// buffer: x in int 64
// buffer: y out int 8
// launch: race_lanes_of_one_store<<<1, 32>>>(x, y)
extern "C" __global__ void race_lanes_of_one_store(const int* x, int* y) {
    y[threadIdx.x & 7] = x[threadIdx.x];  // BUG
}
