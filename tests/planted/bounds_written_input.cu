// expect: out-of-bounds
// hidden: no
// buffer: x in int 64
// buffer: y out int 64
// launch: bounds_written_input<<<1, 64>>>(x, y)
extern "C" __global__ void bounds_written_input(const int* x, int* y) {
    int v = x[threadIdx.x];
    y[v == 63 ? 1 << 24 : threadIdx.x] = v;  // BUG
}
