// expect: uninitialised
// hidden: yes, stack memory holds what earlier calls left
// buffer: x in int 64
// buffer: y out int 64
// launch: uninitialised_local_array<<<1, 64>>>(x, y)
extern "C" __global__ void uninitialised_local_array(const int* x, int* y) {
    volatile int table[16];
    int v = x[threadIdx.x] & 15;
    for (int k = 0; k < 15; k++) table[k] = k * v;
    y[threadIdx.x] = table[v];  // BUG
}
