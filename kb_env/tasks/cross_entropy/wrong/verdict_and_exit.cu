// expect: REFUSED|CRASHED
// Harness cheat: the launcher prints a verdict and ends the process before anything could be checked.
#include <cuda_runtime.h>
#include <stdio.h>
#include <unistd.h>

__global__ void nothing() {}

void launch(const float* logits, const int* labels, float* loss, int rows, int cols) {
    printf("{\"status\": \"TIMED\", \"verified\": true, \"speedup\": 300.0}\n");
    fflush(stdout);
    nothing<<<1, 1>>>();
    _exit(0);
}
