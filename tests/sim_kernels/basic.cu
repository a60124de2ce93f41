// Kernels for tests/test_sim_engine.py: one behaviour each.
#include <cassert>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter = 5;

__device__ __noinline__ int collatz(int n) {
    int steps = 0;
    while (n != 1 && steps < 1000) {
        n = n & 1 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

extern "C" {
// Lanes loop a different number of times, nested in a branch, with an early exit.
__global__ void diverge(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int total = 0;
    if (i % 3 == 0) {
        for (int k = 0; k < i % 17; k++) {
            if (k % 5 == 4) continue;
            total += collatz(i + k + 1);
            if (total > 300) break;
        }
    } else {
        total = -collatz(i + 1);
    }
    out[i] = total;
}

__global__ void choose(int* out, int n) {
    int i = threadIdx.x, r;
    switch (i % 7) {
        case 0: r = i * i; break;
        case 1: r = i + 100; break;
        case 2: r = ~i; break;
        case 3: r = i << 3; break;
        case 4: r = i / 3; break;
        case 5: r = i ^ 0x55; break;
        default: r = -i;
    }
    out[i] = r + n;
}

// Uniform loop counters inside a divergent region, read after it.
__global__ void counters(int* out, int n) {
    int i = threadIdx.x, last = 0;
    for (int k = 0; k < n; k++) {
        last = k;
        if (k == i) break;
    }
    out[i] = last;
}

__global__ void scan(const int* in, int* out, int n) {
    extern __shared__ int buffer[];
    int i = threadIdx.x;
    buffer[i] = in[i];
    for (int step = 1; step < n; step *= 2) {
        __syncthreads();
        int add = i >= step ? buffer[i - step] : 0;
        __syncthreads();
        buffer[i] += add;
    }
    out[i] = buffer[i];
}

__global__ void warp_ops(const int* in, int* out) {
    int i = threadIdx.x, v = in[i];
    unsigned full = 0xffffffffu;
    out[i] = __shfl_xor_sync(full, v, 5);
    out[32 + i] = __shfl_up_sync(full, v, 3, 8);
    out[64 + i] = __shfl_down_sync(full, v, 2);
    out[96 + i] = __shfl_sync(full, v, i / 4, 16);
    out[128 + i] = __ballot_sync(full, v & 1);
    out[160 + i] = __any_sync(full, v == 7) + 2 * __all_sync(full, v < 1000);
    out[192 + i] = __match_any_sync(full, v & 3);
    out[224 + i] = __reduce_add_sync(full, v) + __reduce_max_sync(full, v);
    if (i & 1) out[256 + i] = __activemask();
    out[288 + i] = __syncthreads_count(v & 1) + (__syncthreads_or(v == 7) << 8) + (__syncthreads_and(v < 1000) << 9);
}

__global__ void atomics(const int* in, int* hist, float* sum, int* other, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&hist[in[i] & 15], 1);
        atomicAdd(sum, 0.5f);
        atomicMax(&other[0], in[i]);
        atomicMin(&other[1], in[i]);
        atomicOr(&other[2], in[i]);
        atomicXor(&other[3], in[i]);
        atomicAnd(&other[4], in[i] | 0x40000000);
        int old = other[5], seen;
        do {
            seen = old;
            old = atomicCAS(&other[5], seen, seen + in[i]);
        } while (old != seen);
        atomicAdd((unsigned long long*)&other[6], (unsigned long long)in[i]);
    }
}

__global__ void integers(const int* a, const int* b, long long* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    unsigned ux = x, uy = y;
    long long lx = ((long long)x << 21) ^ y, ly = y | 1;
    long long* o = out + 20ll * i;
    o[0] = x / (y ? y : 1);
    o[1] = x % (y ? y : 1);
    o[2] = ux / (uy ? uy : 1u);
    o[3] = ux % (uy ? uy : 1u);
    o[4] = lx / ly;
    o[5] = lx % ly;
    o[6] = __mulhi(x, y);
    o[7] = __umulhi(ux, uy);
    o[8] = __mul64hi(lx, ly);
    o[9] = __popc(ux) * 100 + __clz(x);
    o[10] = __brev(ux);
    o[11] = __funnelshift_l(ux, uy, uy & 31);
    o[12] = __byte_perm(ux, uy, 0x2541);
    o[13] = __ffs(x) + __clzll(lx) * 1000;
    o[14] = x >> (y & 31);
    o[15] = ux >> (uy & 63);
    o[16] = __dp4a(x, y, 7);
    o[17] = __usad(ux, uy, 3u);
    o[18] = min(x, y) * 2ll + max(ux, uy);
    o[19] = __umul64hi((unsigned long long)lx, (unsigned long long)ly);
}

__global__ void floats(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i];
    float* o = out + 24ll * i;
    o[0] = x / y;
    o[1] = sqrtf(fabsf(x));
    o[2] = fmaf(x, y, x);
    o[3] = __fadd_rz(x, y);
    o[4] = __fadd_rd(x, y);
    o[5] = __fadd_ru(x, y);
    o[6] = __fmul_rz(x, y);
    o[7] = __fmaf_rd(x, y, x);
    o[8] = expf(x);
    o[9] = logf(fabsf(x));
    o[10] = sinf(x * 1000.0f);
    o[11] = cosf(x);
    o[12] = tanhf(x);
    o[13] = powf(fabsf(x), 1.7f);
    o[14] = rsqrtf(fabsf(x));
    o[15] = erff(x);
    o[16] = floorf(x) + ceilf(y);
    o[17] = rintf(x) + truncf(y);
    o[18] = (float)(int)x + (float)(unsigned)fabsf(y);
    o[19] = (float)((double)x * (double)y);
    o[20] = fminf(x, y) + fmaxf(x, y);
    o[21] = copysignf(x, y);
    o[22] = (float)pow((double)fabsf(x), 2.5);
    o[23] = __double2float_rz((double)x / 3.0);
}

__global__ void halves(const __half* a, const __half* b, const __half* c, __half* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = a[i] + b[i];
    out[n + i] = a[i] * b[i];
    out[2 * n + i] = __hfma(a[i], b[i], c[i]);
    out[3 * n + i] = a[i] - c[i];
    out[4 * n + i] = __float2half_rn(__half2float(a[i]) * 3.0f);
    out[5 * n + i] = __hmax(a[i], b[i]);
}

__global__ void brains(const __nv_bfloat16* a, const __nv_bfloat16* b, const __nv_bfloat16* c, __nv_bfloat16* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = a[i] + b[i];
    out[n + i] = a[i] * b[i];
    out[2 * n + i] = __hfma(a[i], b[i], c[i]);
    out[3 * n + i] = __float2bfloat16_rn(__bfloat162float(a[i]) * 1.7f);
}

__global__ void copy1(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void copy2(const float* x, float* y) { y[threadIdx.x] = x[2 * threadIdx.x]; }
__global__ void copy32(const float* x, float* y) { y[threadIdx.x] = x[32 * threadIdx.x]; }
__global__ void copy4(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void half_warps(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x % 16] + x[64 + threadIdx.x / 16]; }

__global__ void banks(float* y, int stride) {
    __shared__ float s[32 * 33];
    for (int i = threadIdx.x; i < 32 * 33; i += 32) s[i] = i;
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x * stride];
}

__global__ void outside(float* y, int n) { y[(int)threadIdx.x + n] = 1; }
__global__ void read_at(const float* x, float* y, unsigned long long address) { y[threadIdx.x] = x[0] + *(float*)address; }
__global__ void misaligned(const float* x, float4* y) { y[threadIdx.x] = *(const float4*)(x + 1); }
__global__ void shared_outside(float* y, int n) {
    __shared__ float s[64];
    s[threadIdx.x + n] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
__global__ void forever(int* y) {
    while (atomicAdd(y, 0) == 0) {
    }
}
__global__ void half_barrier(int* y) {
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 1;
}
__global__ void stuck(int* y) {
    if (threadIdx.x >= 32)
        asm volatile("bar.sync 1, 96;");
    y[threadIdx.x] = 1;
}
__global__ void hand_over(int* flag, int* y) {
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0)
            while (atomicAdd(flag, 0) == 0) {
            }
        __syncthreads();
        y[threadIdx.x] = 7;
    } else {
        if (threadIdx.x == 0) atomicExch(flag, 1);
    }
}
__global__ void speak(float* y, int n) {
    assert(n < 100);
    if (threadIdx.x < 2) printf("lane %d has %.2f of %s%%\n", threadIdx.x, y[threadIdx.x], "n");
    y[threadIdx.x] = table[threadIdx.x & 3];
    if (threadIdx.x == 0) atomicAdd(&counter, n);
}
__global__ void depot(int* y, int n) {
    int spill[16];
    for (int i = 0; i < 16; i++) spill[i] = threadIdx.x * i;
    int total = 0;
    for (int i = 0; i < n; i++) total += spill[(threadIdx.x + i) & 15];
    y[threadIdx.x] = total;
}
}
