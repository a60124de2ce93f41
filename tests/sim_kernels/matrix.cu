// Kernels for tests/test_sim_engine_matrix.py: tensor cores and asynchronous copies.
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

extern "C" {
__global__ void wmma_half(const __half* a, const __half* b, float* c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> x;
    fragment<matrix_b, 16, 16, 16, __half, col_major> y;
    fragment<accumulator, 16, 16, 16, float> z;
    fill_fragment(z, 1.0f);
    load_matrix_sync(x, a, 16);
    load_matrix_sync(y, b, 16);
    mma_sync(z, x, y, z);
    for (int i = 0; i < z.num_elements; i++) z.x[i] *= 2.0f;
    store_matrix_sync(c, z, 16, mem_row_major);
}

// a: 16x16 row-major, b: 16x8 row-major, through ldmatrix (b transposed).
__global__ void mma_half(const __half* a, const __half* b, float* c) {
    __shared__ __align__(16) __half sa[256], sb[128];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) sa[i] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i] = b[i];
    __syncwarp();
    uint32_t pa = __cvta_generic_to_shared(sa + (lane % 16) * 16 + lane / 16 * 8), pb = __cvta_generic_to_shared(sb + (lane % 16) * 8);
    uint32_t x[4], y[2];
    float d[4] = {0, 0, 0, 0};
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(pb));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    int g = lane / 4, t = lane % 4;
    c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];
    c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}

// a: 16x32 row-major int8, b: 8x32 (each column of B contiguous).
__global__ void mma_bytes(const int* a, const int* b, int* c) {
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    int x[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]}, y[2] = {b[g * 8 + t], b[g * 8 + t + 4]};
    int d[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    c[g * 8 + 2 * t] = d[0], c[g * 8 + 2 * t + 1] = d[1];
    c[(g + 8) * 8 + 2 * t] = d[2], c[(g + 8) * 8 + 2 * t + 1] = d[3];
}

__global__ void async_copy(const float* x, float* y, int wait) {
    __shared__ float s[128];
    s[threadIdx.x] = -1;
    __syncthreads();
    __pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 4);
    __pipeline_commit();
    if (wait) __pipeline_wait_prior(0);
    __syncthreads();
    y[threadIdx.x] = s[127 - threadIdx.x];
}

// Thread 0 brings 512 bytes in bulk; all wait on an mbarrier.
__global__ void bulk(const float* x, float* y) {
    __shared__ __align__(16) float s[128];
    __shared__ uint64_t bar;
    uint32_t at = __cvta_generic_to_shared(&bar), to = __cvta_generic_to_shared(s);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" ::"r"(at) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(to), "l"(x), "r"(at)
                     : "memory");
    }
    asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @p bra DONE; bra WAIT; DONE: }" ::"r"(at)
                 : "memory");
    y[threadIdx.x] = s[threadIdx.x] * 2;
}
}
