// Matrix transpose, 64 x 64 tiles, float4 on both sides: each thread transposes 4 x 4 blocks in registers.
#include <cuda_runtime.h>

constexpr int TILE = 64;
constexpr int QUADS = TILE / 4;
constexpr int BLOCK = 256;
constexpr int GENERAL_TILE = 32;

// Both sizes multiples of 64. Quads of a tile row are rotated by their row so that columns hit all banks.
__global__ void transpose_quads(const float4* x, float4* y, int rows, int cols) {
    __shared__ float4 tile[TILE][QUADS];
    int quad = threadIdx.x % QUADS, line = threadIdx.x / QUADS;
    size_t row0 = (size_t)blockIdx.y * TILE, col0 = (size_t)blockIdx.x * TILE;
    float4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = __ldcs(x + ((row0 + 4 * line + k) * cols + col0) / 4 + quad);
    // v holds rows 4*line..+3, columns 4*quad..+3; its transpose is rows of y's tile.
    const float4 t[4] = {make_float4(v[0].x, v[1].x, v[2].x, v[3].x), make_float4(v[0].y, v[1].y, v[2].y, v[3].y),
                         make_float4(v[0].z, v[1].z, v[2].z, v[3].z), make_float4(v[0].w, v[1].w, v[2].w, v[3].w)};
#pragma unroll
    for (int k = 0; k < 4; ++k) tile[4 * quad + k][(line + quad) % QUADS] = t[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        int r = k * (BLOCK / QUADS) + line;
        __stcs(y + ((col0 + r) * rows + row0) / 4 + quad, tile[r][(quad + r / 4) % QUADS]);
    }
}

__global__ void transpose_any(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[GENERAL_TILE][GENERAL_TILE + 1];
    int tx = threadIdx.x % GENERAL_TILE, ty = threadIdx.x / GENERAL_TILE;
    int c = blockIdx.x * GENERAL_TILE + tx, r = blockIdx.y * GENERAL_TILE + ty;
    for (int k = 0; k < GENERAL_TILE; k += BLOCK / GENERAL_TILE)
        if (c < cols && r + k < rows) tile[ty + k][tx] = x[(size_t)(r + k) * cols + c];
    __syncthreads();
    c = blockIdx.y * GENERAL_TILE + tx;
    r = blockIdx.x * GENERAL_TILE + ty;
    for (int k = 0; k < GENERAL_TILE; k += BLOCK / GENERAL_TILE)
        if (c < rows && r + k < cols) y[(size_t)(r + k) * rows + c] = tile[tx][ty + k];
}

void launch(const float* x, float* y, int rows, int cols) {
    if (rows % TILE == 0 && cols % TILE == 0) {
        dim3 grid(cols / TILE, rows / TILE);
        transpose_quads<<<grid, BLOCK>>>(reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(y), rows,
                                         cols);
    } else {
        dim3 grid((cols + GENERAL_TILE - 1) / GENERAL_TILE, (rows + GENERAL_TILE - 1) / GENERAL_TILE);
        transpose_any<<<grid, BLOCK>>>(x, y, rows, cols);
    }
}
