// Microbenchmarks of one GPU, for the constants of the simulator's time model: `kb bench sim --calibrate FILE`
// compiles this file with nvcc, runs it and keeps its JSON. Every figure is measured by events, the fastest of several
// launches; arithmetic and memory rates are per SM and clock at the clock that the same run saw.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e));   \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

static int sms;
static double ghz = 1;
static cudaEvent_t start_event, end_event;
static char *flush_buffer;
static size_t flush_bytes;
static bool first = true;

__global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

__global__ void read_all(const uint4 *data, size_t count, unsigned *sum) {
    unsigned total = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = data[i];
        total += v.x + v.y + v.z + v.w;
    }
    if (total == 0x12345678) *sum = total;
}

static void flush() { read_all<<<sms * 8, 256>>>((const uint4 *)flush_buffer, flush_bytes / 16, (unsigned *)flush_buffer); }

// Microseconds of what `work` queues: the fastest of `runs`, caches flushed before each if `cold`.
static double time_us(const std::function<void()> &work, int runs = 5, bool cold = false) {
    double best = 1e30;
    for (int i = 0; i < runs; i++) {
        if (cold) flush();
        CHECK(cudaDeviceSynchronize());
        spin<<<1, 32>>>(60000);
        CHECK(cudaEventRecord(start_event));
        work();
        CHECK(cudaEventRecord(end_event));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start_event, end_event));
        best = std::min(best, ms * 1e3);
    }
    return best;
}

static void emit(const char *name, double value) {
    printf("%s\n  \"%s\": %.6g", first ? "" : ",", name, value);
    first = false;
}

// ---- arithmetic: throughput with eight independent chains, latency with one ------------------------------------
enum Op { FMA, MUL, IADD, IMAD, MULHI, LOP, HFMA2, MUFU, CVT, DFMA, SHFL, SETP };

template <Op OP> __device__ __forceinline__ void apply(float &x, float a) {
    unsigned &u = reinterpret_cast<unsigned &>(x);
    unsigned b = __float_as_uint(a);
    if (OP == FMA) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(a));
    if (OP == MUL) asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(a));
    if (OP == IADD) asm volatile("add.u32 %0, %0, %1;" : "+r"(u) : "r"(b));
    if (OP == IMAD) asm volatile("mad.lo.u32 %0, %0, %1, %1;" : "+r"(u) : "r"(b));
    if (OP == MULHI) asm volatile("mad.hi.u32 %0, %0, %1, %1;" : "+r"(u) : "r"(b));
    if (OP == LOP) asm volatile("xor.b32 %0, %0, %1;\n\tadd.u32 %0, %0, 1;" : "+r"(u) : "r"(b));
    if (OP == HFMA2) asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(u) : "r"(b));
    if (OP == MUFU) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    if (OP == CVT) asm volatile("{.reg .f32 t; cvt.rn.f32.u32 t, %0; mov.b32 %0, t;}" : "+r"(u));
    if (OP == SHFL) asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, -1;" : "+r"(u));
    if (OP == SETP) asm volatile("{.reg .pred p; setp.lt.u32 p, %0, %1; selp.u32 %0, %1, %0, p;}" : "+r"(u) : "r"(b));
}

template <Op OP, int CHAINS> __global__ void arithmetic(float *out, float a, int rounds, long long *cycles) {
    float x[CHAINS];
    for (int c = 0; c < CHAINS; c++) x[c] = a * (threadIdx.x + c);
    long long begin = clock64();
    for (int i = 0; i < rounds; i++)
#pragma unroll
        for (int k = 0; k < 16; k++)
#pragma unroll
            for (int c = 0; c < CHAINS; c++) apply<OP>(x[c], a);
    long long end = clock64();
    float total = 0;
    for (int c = 0; c < CHAINS; c++) total += x[c];
    if (total == 1.2345f) out[0] = total;
    if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = end - begin;
}

template <int CHAINS> __global__ void doubles(float *out, double a, int rounds, long long *cycles) {
    double x[CHAINS];
    for (int c = 0; c < CHAINS; c++) x[c] = a * (threadIdx.x + c);
    long long begin = clock64();
    for (int i = 0; i < rounds; i++)
#pragma unroll
        for (int k = 0; k < 16; k++)
#pragma unroll
            for (int c = 0; c < CHAINS; c++) asm volatile("fma.rn.f64 %0, %0, %1, %1;" : "+d"(x[c]) : "d"(a));
    long long end = clock64();
    double total = 0;
    for (int c = 0; c < CHAINS; c++) total += x[c];
    if (total == 1.2345) out[0] = (float)total;
    if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = end - begin;
}

template <int CHAINS> __global__ void tensor(float *out, unsigned a, int rounds, long long *cycles) {
    float d[CHAINS][4] = {};
    unsigned r[4] = {a, a + threadIdx.x, a, a}, s[2] = {a, a};
    long long begin = clock64();
    for (int i = 0; i < rounds; i++)
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int c = 0; c < CHAINS; c++)
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                    : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])
                    : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]));
    long long end = clock64();
    float total = 0;
    for (int c = 0; c < CHAINS; c++) total += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    if (total == 1.2345f) out[0] = total;
    if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = end - begin;
}

// ---- memory -------------------------------------------------------------------------------------------------------
template <class T> __global__ void copy_grid(const T *in, T *out, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i];
}

template <class T> __global__ void read_grid(const T *in, unsigned *out, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) {
        T v = in[i];
        if (*(unsigned *)&v == 0x7fffffff) out[0] = 1;
    }
}

__global__ void write_grid(float *out, size_t count, int stride) {
    size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * stride;
    if (i < count) out[i] = 1.0f;
}

__global__ void read_stride(const float *in, float *out, size_t count, int stride) {
    size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * stride;
    if (i < count && in[i] == 1.2345f) out[0] = 1;
}

// Each block reads `span` words of its own again and again, lanes apart by `stride` words, `move` words from load to load.
__global__ void cached(const float *in, float *out, int span, int stride, int move, int rounds, int apart) {
    const float *mine = in + (size_t)blockIdx.x * apart;
    float total = 0;
    unsigned at = threadIdx.x * stride;
    for (int i = 0; i < rounds; i++) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float v;
            asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(mine + (at & (span - 1))));
            total += v;
            at += move;
        }
    }
    if (total == 1.2345f) out[0] = total;
}

// Addresses move on by a whole row of banks, so that no load can be left out and the pattern of banks stays.
template <int WIDTH> __global__ void shared_loads(float *out, int stride, int rounds) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < 8192; i += blockDim.x) tile[i] = (float)i;
    __syncthreads();
    float total = 0;
    unsigned base = (unsigned)__cvta_generic_to_shared(tile), offset = threadIdx.x * stride * 4;
    for (int i = 0; i < rounds; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float4 v = {};
            unsigned address = base + (offset & 16383);
            offset += 128;
            if (WIDTH == 1) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.x) : "r"(address));
            else asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address & ~15u));
            total += v.x + v.w;
        }
    if (total == 1.2345f) out[0] = total;
}

__global__ void chase(const unsigned *next, unsigned begin_at, int rounds, unsigned *out, long long *cycles) {
    unsigned at = begin_at;
    for (int i = 0; i < 4; i++) at = next[at];
    long long begin = clock64();
    for (int i = 0; i < rounds; i++) at = next[at];
    *cycles = clock64() - begin;
    *out = at;
}

__global__ void chase_shared(int rounds, unsigned *out, long long *cycles) {
    __shared__ unsigned next[64];
    next[threadIdx.x] = (threadIdx.x * 7 + 1) % 32;
    __syncwarp();
    unsigned at = threadIdx.x;
    long long begin = clock64();
    for (int i = 0; i < rounds; i++) at = next[at];
    long long end = clock64();
    if (threadIdx.x == 0) *cycles = end - begin;
    out[threadIdx.x] = at;
}

__global__ void barriers(int rounds, long long *cycles) {
    long long begin = clock64();
    for (int i = 0; i < rounds; i++) __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = clock64() - begin;
}

// `apart` words between the addresses of neighbouring threads; 0: all the same.
__global__ void atomics(unsigned *out, size_t words, unsigned apart, int rounds, bool used) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    unsigned total = 0;
    for (int r = 0; r < rounds; r++) {
        unsigned *where = out + (apart ? (i * apart + r * 4099) % words : 0);
        if (used) total += atomicAdd(where, 1u);
        else atomicAdd(where, 1u);
    }
    if (total == 0x7fffffff) out[0] = 0;
}

__global__ void float_atomics(float *out, int rounds) {
    for (int r = 0; r < rounds; r++) atomicAdd(out, 1.0f);
}

__global__ void shared_atomics(unsigned *out, unsigned apart, int rounds, long long *cycles) {
    __shared__ unsigned bins[1024];
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    long long begin = clock64();
    for (int r = 0; r < rounds; r++) atomicAdd(&bins[(threadIdx.x * apart + r) & 1023], 1u);
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == 0) *cycles = clock64() - begin;
    if (bins[threadIdx.x & 1023] == 0x7fffffff) out[0] = 1;
}

__global__ void empty() {}
__global__ void nearly_empty(float *out) {
    if (out == nullptr) asm volatile("trap;");
}

static long long *cycles;
static float *scratch;

static double cycles_of(const std::function<void()> &work) {
    long long best = 1ll << 60;
    for (int i = 0; i < 3; i++) {
        work();
        CHECK(cudaDeviceSynchronize());
        best = std::min(best, *cycles);
    }
    return (double)best;
}

template <Op OP> static void rate(const char *name, double per) {
    char text[96];
    const int rounds = 200, threads = 1024;
    double us = time_us([&] { arithmetic<OP, 8><<<sms * 2, threads>>>(scratch, 1.0001f, 5 * rounds, cycles); });
    snprintf(text, sizeof text, "rate_%s", name);
    emit(text, 5 * rounds * 16.0 * 8 * threads * 2 * per / (us * 1e3 * ghz));
    double c = cycles_of([&] { arithmetic<OP, 1><<<1, 32>>>(scratch, 1.0001f, rounds, cycles); });
    snprintf(text, sizeof text, "latency_%s", name);
    emit(text, c / (rounds * 16.0) / per);
}

static void arithmetic_figures() {
    rate<FMA>("fma", 1);
    rate<MUL>("mul", 1);
    rate<IADD>("iadd", 1);
    rate<IMAD>("imad", 1);
    rate<MULHI>("mulhi", 1);
    rate<LOP>("lop_iadd", 2);
    rate<HFMA2>("hfma2", 1);
    rate<MUFU>("mufu", 1);
    rate<CVT>("cvt", 1);
    rate<SHFL>("shfl", 1);
    rate<SETP>("setp_selp", 2);
    const int rounds = 100;
    double us = time_us([&] { doubles<8><<<sms * 2, 1024>>>(scratch, 1.0001, 5 * rounds, cycles); });
    emit("rate_dfma", 5 * rounds * 16.0 * 8 * 2048 / (us * 1e3 * ghz));
    double c = cycles_of([&] { doubles<1><<<1, 32>>>(scratch, 1.0001, rounds, cycles); });
    emit("latency_dfma", c / (rounds * 16.0));
    us = time_us([&] { tensor<4><<<sms * 2, 512>>>(scratch, 0, 5 * rounds, cycles); });
    emit("rate_mma_macs", 5 * rounds * 8.0 * 4 * 32 * 2048 / (us * 1e3 * ghz));
    c = cycles_of([&] { tensor<1><<<1, 32>>>(scratch, 0, rounds, cycles); });
    emit("latency_mma", c / (rounds * 8.0));
}

static void shared_figures() {
    const int rounds = 400;
    for (int stride : {0, 1, 2, 4, 8, 32}) {
        char text[64];
        double us = time_us([&] { shared_loads<1><<<sms, 1024, 32768>>>(scratch, stride, rounds); });
        snprintf(text, sizeof text, "shared_clocks_per_request_stride%d", stride);
        emit(text, us * 1e3 * ghz / (rounds * 8.0 * 32));
    }
    double us = time_us([&] { shared_loads<4><<<sms, 1024, 32768>>>(scratch, 4, rounds); });
    emit("shared_clocks_per_v4_request", us * 1e3 * ghz / (rounds * 8.0 * 32));
    double c = cycles_of([&] { chase_shared<<<1, 32>>>(1000, (unsigned *)scratch, cycles); });
    emit("latency_shared", c / 1000);
    for (int threads : {64, 128, 256, 512, 1024}) {
        char text[64];
        c = cycles_of([&] { barriers<<<1, threads>>>(500, cycles); });
        snprintf(text, sizeof text, "barrier_clocks_%d", threads);
        emit(text, c / 500);
    }
    for (unsigned apart : {0u, 1u, 32u}) {
        char text[64];
        us = time_us([&] { shared_atomics<<<sms, 1024>>>((unsigned *)scratch, apart, 100, cycles); });
        snprintf(text, sizeof text, "shared_atomic_clocks_per_request_apart%u", apart);
        emit(text, us * 1e3 * ghz / (100.0 * 32));
    }
}

static void chain(unsigned *next, size_t words, unsigned step, int rounds, bool cold, const char *name) {
    std::vector<unsigned> host(words);
    for (size_t i = 0; i < words; i++) host[i] = (unsigned)((i + step) % words);
    CHECK(cudaMemcpy(next, host.data(), words * 4, cudaMemcpyHostToDevice));
    emit(name, cycles_of([&] {
             if (cold) flush();
             chase<<<1, 1>>>(next, 0, rounds, (unsigned *)scratch, cycles);
         }) / rounds);
}

static void memory_figures(char *a, char *b, size_t nbytes) {
    char text[96];
    for (size_t mib : {1, 4, 16, 64, 256, 1024}) {
        size_t bytes = mib << 20;
        if (bytes > nbytes) break;
        double us = time_us([&] { copy_grid<<<bytes / 4 / 256, 256>>>((float *)a, (float *)b, bytes / 4); }, 5, true);
        snprintf(text, sizeof text, "copy_float_%zuMiB_us", mib);
        emit(text, us);
        us = time_us([&] { copy_grid<<<bytes / 16 / 256, 256>>>((float4 *)a, (float4 *)b, bytes / 16); }, 5, true);
        snprintf(text, sizeof text, "copy_float4_%zuMiB_us", mib);
        emit(text, us);
        us = time_us([&] { read_grid<<<bytes / 16 / 256, 256>>>((float4 *)a, (unsigned *)b, bytes / 16); }, 5, true);
        snprintf(text, sizeof text, "read_float4_%zuMiB_us", mib);
        emit(text, us);
        us = time_us([&] { write_grid<<<bytes / 4 / 256, 256>>>((float *)a, bytes / 4, 1); }, 5, true);
        snprintf(text, sizeof text, "write_float_%zuMiB_us", mib);
        emit(text, us);
    }
    size_t words = (256 << 20) / 4;
    for (int stride : {2, 4, 8, 32, 128}) {
        size_t blocks = words / stride / 256;
        snprintf(text, sizeof text, "write_stride%d_256MiB_us", stride);
        emit(text, time_us([&] { write_grid<<<blocks, 256>>>((float *)a, words, stride); }, 5, true));
        snprintf(text, sizeof text, "read_stride%d_256MiB_us", stride);
        emit(text, time_us([&] { read_stride<<<blocks, 256>>>((float *)a, (float *)b, words, stride); }, 5, true));
    }
    for (int warps : {1, 2, 4, 8, 16, 32, 64}) {  // bandwidth against bytes in flight
        unsigned threads = std::min(warps * 32, 1024), blocks = sms * std::max(1, warps / 32);
        size_t bytes = (size_t)256 << 20;
        snprintf(text, sizeof text, "read_float4_%dwarps_gbps", warps);
        double us = time_us([&] { read_all<<<blocks, threads>>>((uint4 *)a, bytes / 16, (unsigned *)b); }, 3, true);
        emit(text, bytes / us / 1e3);
    }
    struct { const char *name; int span, stride, move, apart; } levels[] = {
        {"l1_hit_broadcast", 8192, 0, 32, 0}, {"l1_hit_coalesced", 8192, 1, 32, 0}, {"l1_hit_stride2", 8192, 2, 32, 0},
        {"l1_hit_stride8", 8192, 8, 32, 0}, {"l1_hit_stride32", 32768, 32, 32, 0},
        {"l2_hit_coalesced", 65536, 1, 1024, 65536}, {"l2_hit_stride8", 65536, 8, 8192, 65536},
        {"l2_hit_shared_coalesced", 4 << 20, 1, 32768 + 1024, 0},
    };
    for (auto &level : levels) {
        const int rounds = 64;
        double us = time_us([&] { cached<<<sms, 1024>>>((float *)a, scratch, level.span, level.stride, level.move, rounds, level.apart); });
        snprintf(text, sizeof text, "%s_clocks_per_request", level.name);
        emit(text, us * 1e3 * ghz / (rounds * 8.0 * 32));
    }
    chain((unsigned *)a, 4096, 33, 2000, false, "latency_l1");
    chain((unsigned *)a, (8 << 20) / 4, 1057, 6000, false, "latency_l2");
    chain((unsigned *)a, (size_t)(256 << 20) / 4, 8225, 2000, true, "latency_dram");
    chain((unsigned *)a, (size_t)(256 << 20) / 4, (1 << 20) / 4 + 1057, 200, true, "latency_dram_far");
}

static void atomic_figures(char *a) {
    unsigned *words = (unsigned *)a;
    const unsigned blocks = sms * 4, threads = 256, rounds = 16;
    double total = (double)blocks * threads * rounds;
    emit("atomic_same_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 1 << 24, 0, rounds, false); }) * 1e3 / total);
    emit("atomic_same_returned_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 1 << 24, 0, rounds, true); }) * 1e3 / total);
    emit("atomic_same_float_ns", time_us([&] { float_atomics<<<blocks, threads>>>((float *)a, rounds); }) * 1e3 / total);
    emit("atomic_coalesced_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 1 << 22, 1, rounds, false); }) * 1e3 / total);
    emit("atomic_sector_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 1 << 22, 8, rounds, false); }) * 1e3 / total);
    emit("atomic_256_words_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 256, 37, rounds, false); }) * 1e3 / total);
    emit("atomic_16_words_ns", time_us([&] { atomics<<<blocks, threads>>>(words, 16, 5, rounds, false); }) * 1e3 / total);
}

static void launch_figures() {
    emit("launch_one_us", time_us([&] { empty<<<1, 32>>>(); }, 20));
    emit("launch_two_us", time_us([&] { empty<<<1, 32>>>(); empty<<<1, 32>>>(); }, 20));
    emit("launch_eight_us", time_us([&] { for (int i = 0; i < 8; i++) empty<<<1, 32>>>(); }, 20));
    emit("launch_full_us", time_us([&] { nearly_empty<<<sms, 1024>>>(scratch); }, 20));
    for (int threads : {32, 64, 128, 256, 512, 1024}) {
        char text[64];
        unsigned blocks = sms * 2048 / threads * 64;
        snprintf(text, sizeof text, "block_clocks_per_sm_%d", threads);
        int khz;
        CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
        double us = time_us([&] { nearly_empty<<<blocks, threads>>>(scratch); });
        emit(text, (us - 2.0) * khz * 1e-3 * sms / blocks);
    }
}

int main() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    sms = prop.multiProcessorCount;
    CHECK(cudaEventCreate(&start_event));
    CHECK(cudaEventCreate(&end_event));
    CHECK(cudaMallocHost(&cycles, 8));
    CHECK(cudaMalloc(&scratch, 1 << 20));
    flush_bytes = 2 * (size_t)prop.l2CacheSize / 16 * 16;
    CHECK(cudaMalloc(&flush_buffer, flush_bytes));
    size_t nbytes = std::min((size_t)1 << 30, prop.totalGlobalMem / 8);
    char *a, *b;
    CHECK(cudaMalloc(&a, nbytes));
    CHECK(cudaMalloc(&b, nbytes));
    CHECK(cudaMemset(a, 0, nbytes));
    CHECK(cudaMemset(b, 0, nbytes));
    for (int i = 0; i < 20; i++) spin<<<sms, 128>>>(20000000);  // up to the working clock
    CHECK(cudaDeviceSynchronize());
    printf("{");
    double us = time_us([&] { spin<<<1, 32>>>(20000000); }, 2);
    ghz = 20000000 / us / 1e3;
    emit("clock_ghz", ghz);
    emit("sm_count", sms);
    emit("l2_bytes", prop.l2CacheSize);
    arithmetic_figures();
    shared_figures();
    launch_figures();
    atomic_figures(a);
    memory_figures(a, b, nbytes);
    printf("\n}\n");
    return 0;
}
