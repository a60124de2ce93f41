// Tensor-core instructions: fragments in the hardware's layout (PTX ISA, "Warp Level Matrix Instructions"; g = lane / 4,
// t = lane % 4). Products are exact and summed in double; each result is rounded once. Hardware sums in another
// order and truncates alignment bits, so last bits differ.
#include "runtime.h"

enum Element { F16 = 0, BF16, F32, S8, U8, E4M3, E5M2, TF32, S32 };

static inline float as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static inline u32 bits_of(float v) { u32 b; memcpy(&b, &v, 4); return b; }

static inline float half_value(u32 h) {
    u32 sign = (h & 0x8000) << 16, m = (h & 0x7fff) << 13;
    float f = as_float(m) * 5.192296858534828e33f;  // 2^112 moves the exponent's bias
    u32 b = (h & 0x7c00) == 0x7c00 ? m | 0x7f800000 : bits_of(f);
    return as_float(b | sign);
}

static float value_of(u32 bits, u32 type) {
    switch (type) {
        case F16: return half_value(bits & 0xffff);
        case BF16: return as_float(bits << 16);
        case S8: return (float)(i8)bits;
        case U8: return (float)(u8)bits;
        case E5M2: return half_value((bits & 255) << 8);
        case E4M3: {
            u32 e = bits >> 3 & 15, m = bits & 7;
            float v = e ? as_float((e + 120) << 23 | m << 20) : (float)m / 512.0f;
            if ((bits & 0x7f) == 0x7f) v = __builtin_nanf("");
            return bits & 0x80 ? -v : v;
        }
        case TF32: return as_float(bits & 0xffffe000);
        default: return as_float(bits);
    }
}

static u32 bytes_of(u32 type) { return type == F16 || type == BF16 ? 2 : type == F32 || type == TF32 || type == S32 ? 4 : 1; }

// d = a * b + c for 16 (or 8) rows and 8 columns; a is [row][k], b is [k][column].
static void multiply(const float (*a)[64], const float (*b)[8], double (*sum)[8], u32 rows, u32 depth) {
    for (u32 i = 0; i < rows; i++) {
        double row[8];
        for (u32 n = 0; n < 8; n++) row[n] = sum[i][n];
        for (u32 k = 0; k < depth; k++) {
            double x = a[i][k];
            for (u32 n = 0; n < 8; n++) row[n] += x * (double)b[k][n];
        }
        for (u32 n = 0; n < 8; n++) sum[i][n] = row[n];
    }
}

static void unpack_a(const u32 *regs, float (*a)[64], u32 rows, u32 depth, u32 type) {
    u32 per = 4 / bytes_of(type), count = rows * depth / (LANES * per);
    for (u32 r = 0; r < count; r++)
        for (u32 lane = 0; lane < LANES; lane++) {
            u32 row = rows == 16 ? lane / 4 + 8 * (r & 1) : lane / 4, block = rows == 16 ? r >> 1 : r;
            for (u32 e = 0; e < per; e++)
                a[row][per * (lane & 3) + block * 4 * per + e] = value_of(regs[r * LANES + lane] >> (8 * bytes_of(type) * e), type);
        }
}

static void unpack_b(const u32 *regs, float (*b)[8], u32 depth, u32 type) {
    u32 per = 4 / bytes_of(type), count = depth * 8 / (LANES * per);
    for (u32 r = 0; r < count; r++)
        for (u32 lane = 0; lane < LANES; lane++)
            for (u32 e = 0; e < per; e++)
                b[per * (lane & 3) + r * 4 * per + e][lane / 4] = value_of(regs[r * LANES + lane] >> (8 * bytes_of(type) * e), type);
}

static void unpack_c(const u32 *regs, double (*c)[8], u32 rows, u32 type) {
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 half = 0; half < rows / 8; half++)
            for (u32 e = 0; e < 2; e++) {
                u32 row = lane / 4 + 8 * half, col = 2 * (lane & 3) + e;
                if (type == F16)
                    c[row][col] = half_value(regs[half * LANES + lane] >> (16 * e) & 0xffff);
                else if (type == S32)
                    c[row][col] = (double)(i32)regs[(2 * half + e) * LANES + lane];
                else
                    c[row][col] = as_float(regs[(2 * half + e) * LANES + lane]);
            }
}

static void pack_c(u32 *regs, const double (*c)[8], u32 rows, u32 type, bool saturate) {
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 half = 0; half < rows / 8; half++) {
            u32 word[2];
            for (u32 e = 0; e < 2; e++) {
                double v = c[lane / 4 + 8 * half][2 * (lane & 3) + e];
                if (type == F16) {
                    word[e] = pack_float(v, 5, 10, 0, false);
                } else if (type == S32) {
                    if (saturate) v = v > 2147483647.0 ? 2147483647.0 : v < -2147483648.0 ? -2147483648.0 : v;
                    word[e] = (u32)(i64)v;
                } else {
                    word[e] = bits_of((float)v);
                }
            }
            if (type == F16)
                regs[half * LANES + lane] = word[0] | word[1] << 16;
            else
                regs[2 * half * LANES + lane] = word[0], regs[(2 * half + 1) * LANES + lane] = word[1];
        }
}

extern "C" {
// shape: rows | depth << 8. types: a | b << 8 | c << 16 | d << 24. Registers are [register][lane].
void kb_mma(const u32 *a, const u32 *b, const u32 *c, u32 *d, u32 shape, u32 types, u32 saturate) {
    u32 rows = shape & 255, depth = shape >> 8 & 255;
    float x[16][64], y[64][8];
    double z[16][8];
    unpack_a(a, x, rows, depth, types & 255);
    unpack_b(b, y, depth, types >> 8 & 255);
    unpack_c(c, z, rows, types >> 16 & 255);
    multiply(x, y, z, rows, depth);
    pack_c(d, z, rows, types >> 24, saturate);
}

// m8n8k4 in double: a [g][t], b [t][g], c [g][2t], [g][2t + 1].
void kb_mma_double(const double *a, const double *b, const double *c, double *d) {
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 e = 0; e < 2; e++) {
            double sum = c[e * LANES + lane];
            u32 row = lane / 4, col = 2 * (lane & 3) + e;
            for (u32 k = 0; k < 4; k++) sum = __builtin_fma(a[row * 4 + k], b[col * 4 + k], sum);
            d[e * LANES + lane] = sum;
        }
}

// ldmatrix / stmatrix of 8x8 matrices of 16-bit elements. code: count | transposed << 8 | store << 9.
void kb_matrix(Warp *warp, const u32 *address, u32 mask, u32 *regs, u32 site, u32 code) {
    u32 count = code & 255, transposed = code >> 8 & 1, storing = code >> 9 & 1;
    Site &tally = warp->run->sites[site];
    if (mask != ~0u) fault(warp, UNSUPPORTED, 0, site, 0, 0);
    tally.requests++;
    tally.bytes += 128 * count;
    warp->run->lane_accesses += LANES;
    for (u32 k = 0; k < count; k++) {
        u8 *row[8];
        u32 at[LANES] = {0};
        for (u32 r = 0; r < 8; r++) {
            u32 lane = 8 * k + r, where = address[lane];
            u64 full = (u64)SLOT_SHARED << SLOT_SHIFT | where;
            if (where & 15) fault(warp, MISALIGNED, lane, site, full, 16);
            row[r] = reach(warp, full, 16, lane, site, storing);
            if (warp->clocks && storing) san_write(warp, full, 16, lane, site, 0, nullptr);
            if (warp->clocks && !storing) san_read(warp, full, 16, lane, site, 0);
            at[r] = where;
        }
        tally.sectors += wavefronts(at, 0xff, 16);
        for (u32 lane = 0; lane < LANES; lane++)
            for (u32 e = 0; e < 2; e++) {
                u32 i = transposed ? 2 * (lane & 3) + e : lane / 4, j = transposed ? lane / 4 : 2 * (lane & 3) + e;
                u16 v;
                if (storing) {
                    v = (u16)(regs[k * LANES + lane] >> (16 * e));
                    memcpy(row[i] + 2 * j, &v, 2);
                } else {
                    memcpy(&v, row[i] + 2 * j, 2);
                    u32 &word = regs[k * LANES + lane];
                    word = e ? word | (u32)v << 16 : v;
                }
            }
    }
}

// Where an element of an operand in shared memory lies, by its descriptor (PTX ISA, "Matrix Descriptor Format").
// outer: row of a or column of b; k: along the depth. Offsets count from the start address.
static u64 element_offset(u64 descriptor, u32 outer, u32 k, u32 size, bool transposed) {
    u64 start = (descriptor & 0x3fff) << 4, lead = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
    u32 mode = (u32)(descriptor >> 62), row = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;  // bytes a row of an atom
    u32 inner = transposed ? outer : k, across = transposed ? k : outer;
    u64 byte = (u64)inner * size, at;
    if (mode == 0) {
        // Core matrices of 8 rows of 16 bytes; lead and stride go along k and along the outer dimension.
        u64 step = transposed ? byte / 16 * stride + across / 8 * lead : byte / 16 * lead + across / 8 * stride;
        at = start + step + (u64)(across % 8) * 16 + byte % 16;
    } else {
        at = start + byte / row * lead + (u64)(across / 8) * stride + (u64)(across % 8) * row + byte % row;
    }
    if (mode) at ^= (at >> 7 & (row / 16 - 1)) << 4;
    return at;
}

// wgmma for the 16 rows of this warp: d (in and out) is [register][lane]. a_regs is null if a comes from memory.
// code: columns | depth << 16; types as in kb_mma; flags: negate a, negate b, transpose a, transpose b; add: d is added to.
void kb_wgmma(Warp *warp, u32 *d, const u32 *a_regs, const u64 *a_descriptor, const u64 *b_descriptor, u32 code, u32 types, u32 flags,
              u32 add, u32 mask, u32 site) {
    u32 columns = code & 0xffff, depth = code >> 16, type_a = types & 255, type_b = types >> 8 & 255, type_d = types >> 24;
    u32 size_a = bytes_of(type_a), size_b = bytes_of(type_b), per = type_d == F16 ? 2 : 4;
    u8 *shared = warp->block->shared;
    u64 limit = warp->run->shared_bytes;
    float a[16][64], b[64][8];
    double c[16][8];
    if (mask != ~0u) fault(warp, UNSUPPORTED, 0, site, 0, 0);
    if (a_regs) {
        unpack_a(a_regs, a, 16, depth, type_a);
    } else {
        for (u32 i = 0; i < 16; i++)
            for (u32 k = 0; k < depth; k++) {
                u64 at = element_offset(a_descriptor[0], i + 16 * (warp->index & 3), k, size_a, flags >> 2 & 1);
                if (at + size_a > limit) fault(warp, OUT_OF_BOUNDS, 0, site, (u64)SLOT_SHARED << SLOT_SHIFT | at, size_a);
                u32 bits = 0;
                memcpy(&bits, shared + at, size_a);
                a[i][k] = value_of(bits, type_a);
            }
    }
    if (flags & 1)
        for (u32 i = 0; i < 16; i++)
            for (u32 k = 0; k < depth; k++) a[i][k] = -a[i][k];
    for (u32 part = 0; part < columns / 8; part++) {
        for (u32 n = 0; n < 8; n++)
            for (u32 k = 0; k < depth; k++) {
                u64 at = element_offset(b_descriptor[0], part * 8 + n, k, size_b, flags >> 3 & 1);
                if (at + size_b > limit) fault(warp, OUT_OF_BOUNDS, 0, site, (u64)SLOT_SHARED << SLOT_SHIFT | at, size_b);
                u32 bits = 0;
                memcpy(&bits, shared + at, size_b);
                b[k][n] = flags & 2 ? -value_of(bits, type_b) : value_of(bits, type_b);
            }
        u32 *regs = d + part * per * LANES;
        if (add)
            unpack_c(regs, c, 16, type_d);
        else
            memset(c, 0, sizeof c);
        multiply(a, b, c, 16, depth);
        pack_c(regs, c, 16, type_d, false);
    }
}

// wmma.load and wmma.store of one 32-bit register's elements. which: 0 a, 1 b, 2 c or d. code: which | register << 4 |
// column-major << 12 | store << 13 | element type << 16 | depth << 24.
void kb_wmma(Warp *warp, const u64 *base, const u32 *stride, u32 mask, u32 *word, u32 site, u32 code) {
    u32 which = code & 15, r = code >> 4 & 255, column = code >> 12 & 1, storing = code >> 13 & 1, type = code >> 16 & 255;
    u32 size = bytes_of(type), per = 4 / size;
    for (u32 e = 0; e < per; e++) {
        u64 address[LANES];
        for (u32 lane = 0; lane < LANES; lane++) {
            u32 g = lane / 4, t = lane & 3, row, col;
            if (which == 0)
                row = g + 8 * (r & 1), col = per * t + (r >> 1) * 4 * per + e;
            else if (which == 1) {
                u32 each = code >> 24;  // registers for 8 columns
                row = per * t + (r % each) * 4 * per + e, col = g + 8 * (r / each);
            } else if (per == 2)
                row = g + 8 * (r & 1), col = 2 * t + e + 8 * (r >> 1);
            else
                row = g + 8 * (r >> 1 & 1), col = 2 * t + (r & 1) + 8 * (r >> 2);
            address[lane] = base[lane] + (u64)size * (column ? (u64)col * stride[lane] + row : (u64)row * stride[lane] + col);
        }
        Reached at;
        reach_generic(warp, address, mask, size, site, storing, at);
        for (u32 m = mask; m; m &= m - 1) {
            u32 i = first_lane(m);
            u8 *host = lane_address(at, i, size);
            if (warp->clocks && storing) san_write(warp, address[i], size, i, site, 0, nullptr);
            if (warp->clocks && !storing) san_read(warp, address[i], size, i, site, 0);
            if (storing) {
                u32 v = word[i] >> (8 * size * e % 32);
                memcpy(host, &v, size);
            } else {
                u32 v = 0;
                memcpy(&v, host, size);
                word[i] = e ? word[i] | v << (8 * size * e) : v;
            }
        }
    }
}
}
