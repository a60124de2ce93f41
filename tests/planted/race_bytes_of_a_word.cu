// expect: race
// hidden: yes, neighbouring bytes are written by whole words on few GPUs only
// buffer: x in int 128
// buffer: y out int 128
// launch: race_bytes_of_a_word<<<1, 128>>>(x, y)
extern "C" __global__ void race_bytes_of_a_word(const int* x, int* y) {
    __shared__ unsigned char flags[128];
    flags[threadIdx.x] = x[threadIdx.x] > 3;
    y[threadIdx.x] = flags[(threadIdx.x + 33) % 128];  // BUG
}
