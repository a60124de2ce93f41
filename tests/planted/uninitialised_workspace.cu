// expect: uninitialised
// hidden: yes, fresh memory is zero
// buffer: x in float 256
// buffer: w out float 1
// buffer: y out float 1
// launch: uninitialised_workspace<<<1, 256>>>(x, w, y)
extern "C" __global__ void uninitialised_workspace(const float* x, float* w, float* y) {
    atomicAdd(w, x[threadIdx.x]);  // BUG
    __syncthreads();
    if (threadIdx.x == 0) *y = atomicAdd(w, 0.0f);
}
