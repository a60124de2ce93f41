// The approximate and the specially rounded arithmetic, 32 lanes at a time, without libm: the same bits on
// every machine. The approximate functions are computed in double and rounded once to float; the hardware's
// results differ from these in the last bits (PTX ISA, "Floating Point Instructions": 1 to 2 ulp).
#include "runtime.h"

static inline double as_double(u64 bits) { double v; memcpy(&v, &bits, 8); return v; }
static inline u64 bits_of(double v) { u64 b; memcpy(&b, &v, 8); return b; }
static inline float as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static inline u32 bits_of(float v) { u32 b; memcpy(&b, &v, 4); return b; }
static inline float flush(float v) { return as_float((bits_of(v) & 0x7f800000) ? bits_of(v) : bits_of(v) & 0x80000000); }

// 2^x for |x| < 1100, by splitting off the integer part and a polynomial on [-0.5, 0.5].
static inline double power_of_two(double x) {
    double whole = (x + 6755399441055744.0) - 6755399441055744.0, f = (x - whole) * 0.693147180559945309417;
    double p = 1.0 / 6227020800.0;
    p = p * f + 1.0 / 479001600.0, p = p * f + 1.0 / 39916800.0, p = p * f + 1.0 / 3628800.0, p = p * f + 1.0 / 362880.0;
    p = p * f + 1.0 / 40320.0, p = p * f + 1.0 / 5040.0, p = p * f + 1.0 / 720.0, p = p * f + 1.0 / 120.0;
    p = p * f + 1.0 / 24.0, p = p * f + 1.0 / 6.0, p = p * f + 0.5, p = p * f + 1.0, p = p * f + 1.0;
    i64 e = (i64)whole;
    return p * as_double((u64)(e + 1023) << 52);
}

static inline float exp2_of(float x) {
    double v = x > 200.0f ? 200.0 : x < -200.0f ? -200.0 : (double)x;
    v = x != x ? 0.0 : v;
    float y = (float)power_of_two(v);
    y = x > 200.0f ? __builtin_inff() : x < -200.0f ? 0.0f : y;
    return x != x ? x : y;
}

// log2 of a positive, finite, normal double: exponent, and atanh series of the mantissa in [sqrt(1/2), sqrt(2)].
static inline double log2_of(double x) {
    u64 b = bits_of(x);
    u64 shifted = b - 0x3fe6a09e667f3bcdull;
    i64 e = (i64)shifted >> 52;
    double m = as_double(b - ((u64)e << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0, p = p * z + 1.0 / 19.0, p = p * z + 1.0 / 17.0, p = p * z + 1.0 / 15.0, p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0, p = p * z + 1.0 / 9.0, p = p * z + 1.0 / 7.0, p = p * z + 1.0 / 5.0, p = p * z + 1.0 / 3.0;
    p = p * z + 1.0;
    return (double)e + s * p * 2.88539008177792681472;
}

static inline float log2_approx(float x) {
    double v = x > 0.0f && x < __builtin_inff() ? (double)x : 1.0;
    float y = (float)log2_of(v);
    y = x == 0.0f ? -__builtin_inff() : x < 0.0f ? __builtin_nanf("") : y;
    y = x == __builtin_inff() ? x : y;
    return x != x ? x : y;
}

// sin and cos: reduce by pi/2 in three parts, Taylor polynomials on [-pi/4, pi/4].
static inline void sine_cosine(float x, float &sine, float &cosine) {
    double v = x > 1e8f || x < -1e8f || x != x ? 0.0 : (double)x;
    double n = (v * 0.636619772367581343076 + 6755399441055744.0) - 6755399441055744.0;
    double r = (v - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
    double z = r * r;
    double s = -1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0, s = s * z - 1.0 / 39916800.0, s = s * z + 1.0 / 362880.0, s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0, s = s * z - 1.0 / 6.0, s = r + r * z * s;
    double c = 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0, c = c * z + 1.0 / 479001600.0, c = c * z - 1.0 / 3628800.0, c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0, c = c * z + 1.0 / 24.0, c = c * z - 0.5, c = 1.0 + z * c;
    i64 q = (i64)n;
    double a = (q & 1) ? c : s, b = (q & 1) ? s : c;
    a = (q & 2) ? -a : a;
    b = ((q + 1) & 2) ? -b : b;
    bool bad = x != x || x == __builtin_inff() || x == -__builtin_inff();
    sine = bad ? __builtin_nanf("") : (float)a, cosine = bad ? __builtin_nanf("") : (float)b;
}

static inline float tanh_approx(float x) {
    double v = x > 20.0f ? 20.0 : x < -20.0f ? -20.0 : x != x ? 0.0 : (double)x;
    double e = power_of_two(v * 2.88539008177792681472);
    float y = (float)((e - 1.0) / (e + 1.0));
    float small = (float)(v - v * v * v * (1.0 / 3.0));
    y = v < 1e-4 && v > -1e-4 ? small : y;
    return x != x ? x : y;
}

extern "C" {
#define UNARY(NAME, EXPRESSION)                              \
    void kb_##NAME(const float *a, float *out, u32 ftz) {    \
        for (u32 i = 0; i < LANES; i++) {                    \
            float x = ftz ? flush(a[i]) : a[i], y;           \
            EXPRESSION;                                      \
            out[i] = ftz ? flush(y) : y;                     \
        }                                                    \
    }
UNARY(ex2, y = exp2_of(x))
UNARY(lg2, y = log2_approx(x))
UNARY(sin, float other; sine_cosine(x, y, other))
UNARY(cos, float other; sine_cosine(x, other, y))
UNARY(tanh, y = tanh_approx(x))
UNARY(rsqrt, y = (float)(1.0 / __builtin_sqrt((double)x)); y = x == 0.0f ? __builtin_copysignf(__builtin_inff(), x) : y)
}

// Exact sum s + e = a + b (Knuth).
static inline void two_sum(double a, double b, double &s, double &e) {
    s = a + b;
    double t = s - a;
    e = (a - (s - t)) + (b - t);
    e = e == e ? e : 0.0;
}

// Rounds s + e (|e| under half an ulp of s) to float. mode: 0 nearest even, 1 toward zero, 2 down, 3 up.
static inline float round_sum(double s, double e, u32 mode) {
    // Round to odd into double first: what follows then rounds once.
    u64 b = bits_of(s);
    bool away = (e > 0) == (s > 0);
    bool finite = (b & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
    b = finite && e != 0 && !(b & 1) ? (away ? b + 1 : b - 1) : b;
    double odd = as_double(b);
    float f = (float)odd;
    double back = (double)f;
    u32 fb = bits_of(f);
    bool over = back > odd, under = back < odd;
    bool down = mode == 2 || (mode == 1 && odd > 0), up = mode == 3 || (mode == 1 && odd < 0);
    u32 lower = fb == 0 ? 0x80000001u : (fb >> 31) ? fb + 1 : fb - 1;
    u32 higher = fb == 0x80000000u ? 1u : (fb >> 31) ? fb - 1 : fb + 1;
    fb = down && over ? lower : up && under ? higher : fb;
    return as_float(fb);
}

extern "C" {
// a * b + c (op 0), a + b (1), a * b (2) in float, rounded as mode says.
void kb_rounded(const float *a, const float *b, const float *c, float *out, u32 op, u32 mode) {
    for (u32 i = 0; i < LANES; i++) {
        double s, e;
        if (op == 1)
            two_sum(a[i], b[i], s, e);
        else
            two_sum((double)a[i] * (double)b[i], op ? 0.0 : (double)c[i], s, e);
        float y = round_sum(s, e, mode);
        if (op != 2 && s == 0.0 && mode == 2) {  // an exact zero from unlike signs is -0 when rounding down
            double p = op == 1 ? (double)a[i] : (double)a[i] * (double)b[i], q = op == 1 ? (double)b[i] : (double)c[i];
            y = __builtin_signbit(p) != __builtin_signbit(q) ? -0.0f : y;
        }
        out[i] = y;
    }
}
}

double kb_exp2_double(double x) {
    if (x != x) return x;
    return x > 1000.0 ? __builtin_inf() : x < -1000.0 ? 0.0 : power_of_two(x);
}

float kb_tanh_float(float x) { return tanh_approx(x); }
