// Integer and narrow-float arithmetic that LLVM vectors do not express, 32 lanes at a time. Each result is
// rounded once: halves and bfloat16 are computed in double, where sums and products of them are exact or
// rounded to odd first.
#include "runtime.h"

static inline double as_double(u64 bits) { double v; memcpy(&v, &bits, 8); return v; }
static inline u64 bits_of(double v) { u64 b; memcpy(&b, &v, 8); return b; }
static inline float as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static inline u32 bits_of(float v) { u32 b; memcpy(&b, &v, 4); return b; }

// A double rounded to a float format with `ebits` exponent and `mbits` mantissa bits. mode: 0 nearest even,
// 1 toward zero, 2 down, 3 up, 4 nearest away. `sticky` says that the true value lies a little further from zero.
u32 pack_float(double value, u32 ebits, u32 mbits, u32 mode, bool satfinite) {
    u64 b = bits_of(value);
    u32 sign = (u32)(b >> 63), width = ebits + mbits;
    i32 exponent = (i32)(b >> 52 & 0x7ff);
    u64 mantissa = b & 0xfffffffffffffull;
    u32 top = ((1u << ebits) - 1) << mbits;
    if (exponent == 0x7ff) {
        if (mantissa) return ebits == 5 && mbits == 10 ? 0x7fff : top | ((1u << mbits) - 1);  // the canonical NaN
        return sign << width | (satfinite ? top - 1 : top);
    }
    if (!exponent && !mantissa) return sign << width;
    i32 bias = (1 << (ebits - 1)) - 1, e = exponent - 1023 + bias;
    u64 full = exponent ? mantissa | 1ull << 52 : mantissa;
    if (!exponent) e++;
    u32 drop = 52 - mbits;
    if (e < 1) {
        u32 more = (u32)(1 - e);
        drop = more > 60 ? 63 : drop + more;
        if (drop > 63) drop = 63;
        e = 0;
    }
    u64 kept = full >> drop, rest = full & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    bool up = mode == 0 ? rest > half || (rest == half && (kept & 1)) : mode == 4 ? rest >= half
            : mode == 2 ? rest && sign : mode == 3 ? rest && !sign : false;
    kept += up;
    u32 out = e > 0 ? (u32)((((u64)(e - 1)) << mbits) + kept) : (u32)kept;
    if (out >= top) out = satfinite || mode == 1 || (mode == 2 && !sign) || (mode == 3 && sign) ? top - 1 : top;
    return sign << width | out;
}

double unpack_float(u32 bits, u32 ebits, u32 mbits) {
    u32 sign = bits >> (ebits + mbits) & 1, e = bits >> mbits & ((1u << ebits) - 1), m = bits & ((1u << mbits) - 1);
    i32 bias = (1 << (ebits - 1)) - 1;
    double v;
    if (e == (1u << ebits) - 1)
        v = m ? __builtin_nan("") : __builtin_inf();
    else if (e)
        v = as_double((u64)((i32)e - bias + 1023) << 52 | (u64)m << (52 - mbits));
    else
        v = (double)m * as_double((u64)(1 - bias - (i32)mbits + 1023) << 52);
    return sign ? -v : v;
}

// a + b in double, rounded to odd, so that a second rounding gives the right result.
static double odd_sum(double a, double b) {
    double s = a + b, t = s - a, e = (a - (s - t)) + (b - t);
    u64 bits = bits_of(s);
    if (e == e && e != 0 && (bits & 0x7ff0000000000000ull) != 0x7ff0000000000000ull && !(bits & 1))
        bits = (e > 0) == (s > 0) ? bits + 1 : bits - 1;
    return as_double(bits);
}

extern double kb_exp2_double(double);
extern float kb_tanh_float(float);

extern "C" {
// Half arithmetic on `count` 16-bit values. code: operation, format << 8 (1: bfloat16), flags << 16 (sat, relu, ftz, NaN).
void kb_half(const u16 *a, const u16 *b, const u16 *c, u16 *out, u32 code, u32 count) {
    u32 op = code & 255, brain = code >> 8 & 1, flags = code >> 16, ebits = brain ? 8 : 5, mbits = brain ? 7 : 10;
    u16 top = (u16)(((1u << ebits) - 1) << mbits);
    for (u32 i = 0; i < count; i++) {
        if (op == 6 || op == 7) {
            out[i] = op == 6 ? a[i] ^ 0x8000 : a[i] & 0x7fff;
            continue;
        }
        double x = unpack_float(a[i], ebits, mbits), y = unpack_float(b[i], ebits, mbits), z = unpack_float(c[i], ebits, mbits), r = 0;
        if (op == 0) r = x + y;
        if (op == 1) r = x - y;
        if (op == 2) r = x * y;
        if (op == 3) r = odd_sum(x * y, z);
        if (op == 4 || op == 5) {
            bool nx = x != x, ny = y != y;
            if (nx || ny) {
                r = (flags & 8) || (nx && ny) ? __builtin_nan("") : nx ? y : x;
            } else {
                bool first = op == 4 ? x < y || (x == y && __builtin_signbit(x)) : x > y || (x == y && !__builtin_signbit(x));
                r = first ? x : y;
            }
        }
        if (op == 8) r = kb_exp2_double(x);
        if (op == 9) r = (double)kb_tanh_float((float)x);
        if (flags & 1) r = r > 0 ? (r < 1 ? r : 1.0) : 0.0;
        if ((flags & 2) && !(r > 0) && r == r) r = 0.0;
        u16 bits = (u16)pack_float(r, ebits, mbits, 0, false);
        if ((flags & 4) && !(bits & top)) bits &= 0x8000;
        out[i] = bits;
    }
}

// Floats (or doubles) to f16 (0), bf16 (1) or f32 (2). code: target | mode << 4 | double << 8 | relu << 9 | satfinite << 10.
void kb_narrow(const void *in, void *out, u32 code) {
    u32 target = code & 15, mode = code >> 4 & 15;
    for (u32 i = 0; i < LANES; i++) {
        double v = code >> 8 & 1 ? ((const double *)in)[i] : (double)((const float *)in)[i];
        if ((code >> 9 & 1) && !(v > 0) && v == v) v = 0.0;
        bool finite = code >> 10 & 1;
        if (target == 0) ((u16 *)out)[i] = (u16)pack_float(v, 5, 10, mode, finite);
        if (target == 1) ((u16 *)out)[i] = v != v ? 0x7fff : (u16)pack_float(v, 8, 7, mode, finite);
        if (target == 2) ((u32 *)out)[i] = pack_float(v, 8, 23, mode, finite);
    }
}

// 64-bit integers to f16, bf16, f32, f64. code: target | mode << 4 | signed << 8.
void kb_from_int(const u64 *in, void *out, u32 code) {
    u32 target = code & 15, mode = code >> 4 & 15;
    for (u32 i = 0; i < LANES; i++) {
        bool negative = (code >> 8 & 1) && in[i] >> 63;
        u64 size = negative ? 0 - in[i] : in[i];
        if (target == 3) {
            u64 high = size >> 32, low = size & 0xffffffffu;
            double s = odd_sum((double)high * 4294967296.0, (double)low), v = (double)size;
            u32 sense = negative && (mode == 2 || mode == 3) ? 5 - mode : mode;
            (void)s;
            if (sense && (unsigned __int128)v != size) {
                bool over = (unsigned __int128)v > size;
                if (over && (sense == 1 || sense == 2)) v = as_double(bits_of(v) - 1);
                if (!over && sense == 3) v = as_double(bits_of(v) + 1);
            }
            ((double *)out)[i] = negative ? -v : v;
            continue;
        }
        // Keep 60 leading bits and a sticky one: exact in what follows.
        u32 shift = size >> 53 ? 11 - (u32)__builtin_clzll(size) : 0;
        u64 kept = size >> shift | (shift && (size & ((1ull << shift) - 1)) ? 1 : 0);
        double v = (double)kept * as_double((u64)(1023 + shift) << 52);
        v = negative ? -v : v;
        if (target == 0) ((u16 *)out)[i] = (u16)pack_float(v, 5, 10, mode, false);
        if (target == 1) ((u16 *)out)[i] = (u16)pack_float(v, 8, 7, mode, false);
        if (target == 2) ((u32 *)out)[i] = pack_float(v, 8, 23, mode, false);
    }
}

// e4m3 has no infinity: its largest exponent with all mantissa bits set is NaN, the rest are numbers.
static u32 pack8(float value, u32 e5) {
    if (e5) return pack_float(value, 5, 2, 0, true);
    if (value != value) return 0x7f;
    u32 sign = bits_of(value) >> 31;
    double size = value < 0 ? -(double)value : (double)value;
    if (size > 448.0) return sign << 7 | 0x7e;
    u32 bits = pack_float(size, 5, 3, 0, false);  // one exponent bit more than e4m3, rebased below
    i32 e = (i32)(bits >> 3) - 8;
    if (e >= 1) return sign << 7 | (u32)e << 3 | (bits & 7);
    double scaled = size * 512.0;  // subnormals are multiples of 2^-9
    double whole = (scaled + 6755399441055744.0) - 6755399441055744.0;
    return sign << 7 | (u32)whole;
}

void kb_pack8(const float *low, const float *high, u16 *out, u32 code) {
    for (u32 i = 0; i < LANES; i++) {
        float a = low[i], b = high[i];
        if (code >> 4 & 1) a = a > 0 || a != a ? a : 0, b = b > 0 || b != b ? b : 0;
        out[i] = (u16)(pack8(a, (code & 15) == 3) | pack8(b, (code & 15) == 3) << 8);
    }
}

void kb_unpack8(const u16 *in, u32 *out, u32 code) {
    for (u32 i = 0; i < LANES; i++) {
        u32 word = 0;
        for (u32 k = 0; k < 2; k++) {
            u32 b = in[i] >> (8 * k) & 255, h;
            if ((code & 15) == 3)
                h = b << 8;
            else if ((b & 0x7f) == 0x7f)
                h = 0x7fff;
            else {
                double v = unpack_float(b & 0x7f, 5, 3);  // read with a bias of 15 instead of 7: scale by 2^8
                u32 e = b >> 3 & 15, m = b & 7;
                v = e ? as_double((u64)((i32)e - 7 + 1023) << 52 | (u64)m << 49) : m / 512.0;
                h = pack_float(b >> 7 ? -v : v, 5, 10, 0, false);
            }
            if ((code >> 4 & 1) && (h & 0x8000) && (h & 0x7fff) <= 0x7c00) h = 0;
            word |= h << (16 * k);
        }
        out[i] = word;
    }
}

// code: 1 remainder, 2 signed. Division by zero gives all ones, as on the device; remainder the dividend.
void kb_divide(const u64 *a, const u64 *b, u64 *out, u32 code) {
    for (u32 i = 0; i < LANES; i++) {
        if (!b[i]) {
            out[i] = code & 1 ? a[i] : ~0ull;
        } else if (code & 2) {
            i64 x = (i64)a[i], y = (i64)b[i];
            if (y == -1)
                out[i] = code & 1 ? 0 : 0 - a[i];
            else
                out[i] = (u64)(code & 1 ? x % y : x / y);
        } else {
            out[i] = code & 1 ? a[i] % b[i] : a[i] / b[i];
        }
    }
}

// dp4a, dp2a. code: first signed, second signed << 1, two-way << 2, upper half << 3.
void kb_dot(const u32 *a, const u32 *b, const u32 *c, u32 *out, u32 code) {
    for (u32 i = 0; i < LANES; i++) {
        u32 total = c[i], wide = code >> 2 & 1, parts = wide ? 2 : 4;
        for (u32 k = 0; k < parts; k++) {
            u32 y = b[i] >> (8 * (k + (wide && (code >> 3 & 1) ? 2 : 0))) & 255;
            u32 x = wide ? a[i] >> (16 * k) & 65535 : a[i] >> (8 * k) & 255;
            i64 p = code & 1 ? (wide ? (i64)(i16)x : (i64)(i8)x) : (i64)x, q = code & 2 ? (i64)(i8)y : (i64)y;
            total += (u32)(p * q);
        }
        out[i] = total;
    }
}

void kb_fns(const u32 *mask, const u32 *base, const u32 *offset, u32 *out) {
    for (u32 i = 0; i < LANES; i++) {
        i32 want = (i32)offset[i], at = (i32)base[i], found = -1;
        i32 step = want < 0 ? -1 : 1, left = want < 0 ? -want : want;
        if (want == 0) {
            found = at >= 0 && at < 32 && (mask[i] >> at & 1) ? at : -1;
        } else {
            for (; at >= 0 && at < 32; at += step)
                if ((mask[i] >> at & 1) && !--left) {
                    found = at;
                    break;
                }
        }
        out[i] = (u32)found;
    }
}

// mode: 0 plain, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
void kb_prmt(const u32 *a, const u32 *b, const u32 *selector, u32 *out, u32 mode) {
    for (u32 i = 0; i < LANES; i++) {
        u64 bytes = (u64)b[i] << 32 | a[i];
        u32 s = selector[i], result = 0, n = s & 3;
        for (u32 k = 0; k < 4; k++) {
            u32 pick = s >> (4 * k) & 15;
            if (mode == 1) pick = (n + k) & 7;
            if (mode == 2) pick = (n - k) & 7;
            if (mode == 3) pick = n;
            if (mode == 4) pick = k < n ? n : k;
            if (mode == 5) pick = k > n ? n : k;
            if (mode == 6) pick = (n & 1) * 2 + (k & 1);
            u32 byte = (u32)(bytes >> (8 * (pick & 7))) & 255;
            if (pick & 8) byte = byte & 128 ? 255 : 0;
            result |= byte << (8 * k);
        }
        out[i] = result;
    }
}

// Directed rounding in double by the sign of the exact error (fma gives it for products).
void kb_rounded64(const double *a, const double *b, const double *c, double *out, u32 op, u32 mode) {
    for (u32 i = 0; i < LANES; i++) {
        double s, e;
        if (op == 1) {
            s = a[i] + b[i];
            double t = s - a[i];
            e = (a[i] - (s - t)) + (b[i] - t);
        } else {
            double p = a[i] * b[i], q = __builtin_fma(a[i], b[i], -p);
            s = p, e = q;
            if (op == 0) {
                s = __builtin_fma(a[i], b[i], c[i]);
                double t = p + c[i], u = t - p;
                e = ((p - (t - u)) + (c[i] - u)) + q + (t - s);
            }
        }
        bool finite = (bits_of(s) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
        if (e == e && e != 0 && finite) {
            bool down = mode == 2 || (mode == 1 && s > 0), up = mode == 3 || (mode == 1 && s < 0);
            u64 bits = bits_of(s);
            if (down && e < 0) s = as_double(s > 0 ? bits - 1 : bits + 1);
            if (up && e > 0) s = as_double(s > 0 ? bits + 1 : bits - 1);
        }
        out[i] = s;
    }
}
}
