// expect: CRASHED|REFUSED
// Ends the process with exit code 0 in place of work: nothing may read that as a pass.
#include <cuda_runtime.h>

#include <cstdlib>

__global__ void nothing() {}

void launch(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols) {
    nothing<<<1, 1>>>();
    std::exit(0);
}
