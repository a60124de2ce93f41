// task: vector_add
// All arguments in one struct passed by value, with padding between them.
#include <cuda_runtime.h>
struct Job { char kind; const float* a; short odd; const float* b; float* c; int n; };
__global__ void run(Job job) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < job.n && job.kind == 'a') job.c[i] = job.a[i] + job.b[i];
}
void launch(const float* a, const float* b, float* c, int n) {
    Job job;
    job.kind = 'a';
    job.a = a;
    job.b = b;
    job.c = c;
    job.n = n;
    job.odd = 1;
    run<<<(n + 127) / 128, 128>>>(job);
}
