// Launchers for tests/test_record.py, picked by `mode`: below 20 honest, from 20 on hostile.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <csignal>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>
#include <vector>

struct Pair { char tag; const float* from; short odd; float* to; int n; };
__constant__ float table[8];
__device__ float counter[4];

__global__ void plain(const float* x, float* y, int n, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * scale + table[i & 7] + counter[i & 3];
}
template <int N> __global__ void templated(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = N * x[0]; }
namespace { __global__ void hidden(const float* x, float* y) { y[0] = x[0]; } }
static __global__ void internal(const float* x, float* y) { y[1] = x[1]; }
__global__ void by_struct(Pair p) { if (p.n) p.to[0] = p.from[0] + p.tag + p.odd; }
__global__ void dynamic(float* y) { extern __shared__ float s[]; s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[0]; }
__global__ void many(float** rows) { rows[threadIdx.x][0] = 1; }
__global__ void number(float* y, long long value) { y[0] = float(value); }
__global__ void together(float* y) { cooperative_groups::this_grid().sync(); y[0] = 1; }
__global__ void __launch_bounds__(128) bounded(float* y) { y[threadIdx.x] = 1; }

void honest(const float* x, float* y, int n, int mode, float scale) {
    int blocks = (n + 255) / 256;
    if (mode == 0) plain<<<blocks, 256>>>(x, y, n, scale);
    if (mode == 1) {
        float *a, *b;
        cudaMalloc(&a, n * 4);
        cudaMallocAsync((void**)&b, n * 8, 0);
        cudaMemsetAsync(b + 1, 7, n * 4, 0);
        plain<<<blocks, 256>>>(x, a, n, 1.0f);
        cudaMemcpy(b, a, n * 4, cudaMemcpyDeviceToDevice);
        plain<<<blocks, 256>>>(b, y, n, 1.0f);
        cudaFree(a);
        cudaFree(b);
    }
    if (mode == 2) {
        Pair p;
        p.tag = 1; p.from = x + 3; p.odd = 2; p.to = y; p.n = n;
        by_struct<<<1, 1>>>(p);
    }
    if (mode == 3) {
        cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000);
        dynamic<<<1, 32, 100000>>>(y);
    }
    if (mode == 4) { templated<3><<<1, 32>>>(x, y, n); hidden<<<1, 1>>>(x, y); internal<<<1, 1>>>(x, y); }
    if (mode == 5) {
        float values[8] = {1, 2, 3, 4, 5, 6, 7, float(n)};
        cudaMemcpyToSymbol(table, values, sizeof values);
        plain<<<blocks, 256>>>(x, y, n, scale);
    }
    if (mode == 6) {
        cudaStream_t s, t;
        cudaEvent_t e;
        cudaStreamCreate(&s); cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking); cudaEventCreate(&e);
        internal<<<1, 1, 0, s>>>(x, y);
        cudaEventRecord(e, s);
        cudaStreamWaitEvent(t, e, 0);
        hidden<<<1, 1, 0, t>>>(x, y);
        cudaStreamSynchronize(t);
        cudaDeviceSynchronize();
    }
    if (mode == 7) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute[1];
        attribute[0].id = cudaLaunchAttributeClusterDimension;
        attribute[0].val.clusterDim.x = 2; attribute[0].val.clusterDim.y = 1; attribute[0].val.clusterDim.z = 1;
        config.gridDim = 4; config.blockDim = 128; config.attrs = attribute; config.numAttrs = 1;
        cudaLaunchKernelEx(&config, plain, x, y, n, scale);
    }
    if (mode == 8) {
        int per = 0;
        cudaDeviceProp prop;
        cudaGetDeviceProperties(&prop, 0);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, together, 256, 0);
        void* arguments[] = {&y};
        cudaLaunchCooperativeKernel((void*)together, dim3(per * prop.multiProcessorCount), dim3(256), arguments, 0, 0);
    }
    if (mode == 9) {
        void* address;
        cudaGetSymbolAddress(&address, counter);
        cudaMemset(address, 0, sizeof(float) * 4);
        number<<<1, 1>>>((float*)address + 1, 5);
        plain<<<blocks, 256>>>(x, y + n / 2, n / 2, scale);
    }
    if (mode == 10) {
        int grid, block;
        cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0);
        plain<<<grid, block>>>(x, y, n, scale);
    }
    if (mode == 11) {  // tries a configuration, sees the error, takes another
        plain<<<blocks, 2048>>>(x, y, n, scale);
        if (cudaGetLastError() != cudaSuccess) plain<<<blocks, 256>>>(x, y, n, scale);
    }
    if (mode == 12) {  // a table of device pointers
        float* rows[3] = {y, y + 8, y + 16};
        float** device;
        cudaMalloc(&device, sizeof rows);
        cudaMemcpy(device, rows, sizeof rows, cudaMemcpyHostToDevice);
        many<<<1, 3>>>(device);
    }
    if (mode == 13) for (int i = 0; i < 300; i++) { float* w; cudaMalloc(&w, 1 << 20); internal<<<1, 1>>>(x, w); cudaFree(w); }
}

__attribute__((noinline)) int deep(int n) { volatile char room[1 << 16]; room[n & 7] = 1; return deep(n + 1) + room[n & 15]; }
void hostile(const float* x, float* y, int n, int mode) {
    if (mode == 20) exit(3);
    if (mode == 21) abort();
    if (mode == 22) for (volatile int i = 0;; i++) {}
    if (mode == 23) for (;;) if (fork() < 0) usleep(100);
    if (mode == 24) { for (;;) { char* p = (char*)malloc(1 << 26); if (!p) abort(); memset(p, 1, 1 << 26); } }
    if (mode == 25) printf("%f", y[0] = x[0]);
    if (mode == 26) { float v; cudaMemcpy(&v, x, 4, cudaMemcpyDeviceToHost); }
    if (mode == 27) number<<<1, 1>>>(y, (long long)(y - x));
    if (mode == 28) { FILE* f = fopen("/dev/urandom", "r"); int v = fgetc(f) + 256 * fgetc(f); number<<<1, 1>>>(y, v); }
    if (mode == 29) { char junk[4096]; memset(junk, 0xff, sizeof junk); for (int fd = 3; fd < 64; fd++) if (write(fd, junk, sizeof junk) < 0) continue; number<<<1, 1>>>(y, 1); }
    if (mode == 30) throw std::runtime_error("no");
    if (mode == 32) { void* p; cudaMalloc(&p, 1ull << 40); number<<<1, 1>>>(y, p != nullptr); }
    if (mode == 33) plain<<<1, 2048>>>(x, y, n, 1.0f);
    if (mode == 34) dynamic<<<1, 32, 100000>>>(y);
    if (mode == 35) bounded<<<1, 256>>>(y);
    if (mode == 36) for (;;) puts("a line of output that nobody reads, again and again and again");
    if (mode == 37) { cudaMemset(y, 0, 4 * (size_t)n + 1); number<<<1, 1>>>(y, 1); }
    if (mode == 38) { if (fork() == 0) { setsid(); if (fork() == 0) { setsid(); execlp("sleep", "sleep", "7177.25", (char*)0); } _exit(0); } usleep(20000); number<<<1, 1>>>(y, 1); }
    if (mode == 39) deep(mode);
    if (mode == 40) { kill(getppid(), SIGKILL); pause(); }
    if (mode == 41) { kill(-1, SIGKILL); pause(); }
    if (mode == 42) raise(SIGSTOP);
    if (mode == 43) { int id = open("/etc/passwd", O_RDONLY), env = open("/proc/1/environ", O_RDONLY); number<<<1, 1>>>(y, 10 * (id >= 0) + (env >= 0)); }
    if (mode == 44) { float* p; cudaMalloc(&p, 64); cudaFree(p); for (int i = 0; i < 100000; i++) number<<<1, 1>>>(y, i); }
    if (mode == 45) { cudaStream_t s = (cudaStream_t)0x1230; number<<<1, 1, 0, s>>>(y, 1); }
    if (mode == 46) number<<<1, 1>>>(y, (long long)time(nullptr));
    if (mode == 47) { std::vector<char> big(100 << 20); cudaMemcpy(y, big.data(), 4, cudaMemcpyHostToDevice); cudaMemcpyToSymbol(table, big.data(), 32); number<<<1, 1>>>(y, 1); }
}

void launch(const float* x, float* y, int n, int mode, float scale) {
    if (mode < 20) honest(x, y, n, mode, scale);
    else hostile(x, y, n, mode);
}
