// Instructions in which lanes of a warp meet: shuffles, votes, matches, reductions, atomics; and what ends a kernel.
#include <stdio.h>

#include "runtime.h"

static inline float as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
static inline u32 bits_of(float v) { u32 b; memcpy(&b, &v, 4); return b; }
static inline double as_double(u64 bits) { double v; memcpy(&v, &bits, 8); return v; }
static inline u64 bits_of(double v) { u64 b; memcpy(&b, &v, 8); return b; }

extern "C" void kb_order(Warp *warp, u32 order);
extern "C" void kb_half(const u16 *a, const u16 *b, const u16 *c, u16 *out, u32 code, u32 count);

enum { EXCH = 0, ADD, MIN, MAX, AND, OR, XOR, INC, DEC, CAS };
enum { UNSIGNED = 0, SIGNED, FLOAT, HALF2, BRAIN2, HALF, BRAIN };

static u64 combine(u32 op, u32 type, u32 width, u64 old, u64 value, u64 other) {
    u64 limit = width == 8 ? ~0ull : (1ull << (8 * width)) - 1;
    if (op == EXCH) return value;
    if (op == CAS) return (old & limit) == (value & limit) ? other : old;
    if (type == FLOAT && width == 4) {
        float a = as_float((u32)old), b = as_float((u32)value);
        if (op == ADD) return bits_of(a + b);
        return bits_of(op == MIN ? __builtin_fminf(a, b) : __builtin_fmaxf(a, b));
    }
    if (type == FLOAT) {
        double a = as_double(old), b = as_double(value);
        if (op == ADD) return bits_of(a + b);
        return bits_of(op == MIN ? __builtin_fmin(a, b) : __builtin_fmax(a, b));
    }
    if (type >= HALF2) {
        u16 a[2], b[2], c[2] = {0, 0}, r[2];
        memcpy(a, &old, 4), memcpy(b, &value, 4);
        u32 code = (op == ADD ? 0 : op == MIN ? 4 : 5) | (type == BRAIN2 || type == BRAIN ? 1u << 8 : 0);
        kb_half(a, b, c, r, code, 2);
        u32 out;
        memcpy(&out, r, 4);
        return type == HALF || type == BRAIN ? out & 0xffff : out;
    }
    switch (op) {
        case ADD: return (old + value) & limit;
        case AND: return old & value;
        case OR: return old | value;
        case XOR: return old ^ value;
        case INC: return (u32)old >= (u32)value ? 0 : (u32)old + 1;
        case DEC: return (u32)old == 0 || (u32)old > (u32)value ? (u32)value : (u32)old - 1;
    }
    bool less;
    if (type == SIGNED)
        less = width == 8 ? (i64)old < (i64)value : (i32)(u32)old < (i32)(u32)value;
    else
        less = (old & limit) < (value & limit);
    return (op == MIN) == less ? old : value;
}

extern "C" {
// Source lane of each lane: mode 0 up, 1 down, 2 bfly, 3 idx. `inside` gets the lanes whose source is in range.
void kb_shfl(Warp *warp, const u32 *value, const u32 *amount, const u32 *clamp, u32 *out, u32 *inside, u32 mask, u32 mode, u32 site) {
    u32 good = 0;
    for (u32 i = 0; i < LANES; i++) {
        u32 c = clamp[i], segment = c >> 8 & 31, top = c & 31, b = amount[i] & 31;
        u32 high = (i & segment) | (top & ~segment), low = i & segment;
        i32 j = mode == 0 ? (i32)i - (i32)b : mode == 1 ? (i32)i + (i32)b : mode == 2 ? (i32)(i ^ b) : (i32)(low | (b & ~segment));
        bool ok = mode == 0 ? j >= (i32)high : j <= (i32)high;
        u32 from = ok ? (u32)j & 31 : i;
        good |= (u32)ok << i;
        out[i] = value[from];
        if ((mask >> i & 1) && ok && !(mask >> from & 1)) finding(warp, ABSENT_LANE, i, site);
    }
    *inside = good;
}

// mode 0 all, 1 any, 2 uni, 3 ballot; only lanes in the instruction's member mask count.
u32 kb_vote(u32 predicate, u32 mask, u32 mode) {
    u32 yes = predicate & mask;
    if (mode == 0) return yes == mask;
    if (mode == 1) return yes != 0;
    if (mode == 2) return yes == mask || yes == 0;
    return yes;
}

// match.any (all = 0) or match.all; values are 64 bits wide. `same` tells match.all's predicate.
void kb_match(const u64 *value, u32 mask, u32 *out, u32 all, u32 *same) {
    u32 first = mask ? first_lane(mask) : 0, equal = 1;
    for (u32 i = 0; i < LANES; i++) {
        u32 bits = 0;
        if (mask >> i & 1)
            for (u32 j = 0; j < LANES; j++) bits |= (u32)((mask >> j & 1) && value[j] == value[i]) << j;
        if ((mask >> i & 1) && value[i] != value[first]) equal = 0;
        out[i] = bits;
    }
    *same = equal;
    if (all)
        for (u32 i = 0; i < LANES; i++) out[i] = equal ? mask : 0;
}

// Reduction over the lanes of each lane's member mask. Operation codes of the atomics.
void kb_redux(const u32 *value, const u32 *members, u32 mask, u32 *out, u32 op, u32 is_signed) {
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u32 group = members[i] & mask, total = 0;
        bool started = false;
        for (u32 m = group; m; m &= m - 1) {
            u32 v = value[first_lane(m)];
            total = started ? (u32)combine(op, is_signed ? SIGNED : UNSIGNED, 4, total, v, 0) : v;
            started = true;
        }
        out[i] = total;
    }
}

// Counts one atomic on a word of global memory. Where the table is full, further words are not counted.
static void count_hot(Run *run, u64 word) {
    u32 h = (u32)(word * 0x9E3779B97F4A7C15ull >> 48);
    for (u32 probe = 0; probe < 16; probe++, h = (h + 1) & (HOT_WORDS - 1)) {
        u64 *entry = run->hot + 2 * h;
        if (!entry[1]) entry[0] = word;
        if (entry[0] != word) continue;
        if (++entry[1] > run->hot_most) run->hot_most = entry[1];
        return;
    }
}

// Atomics, lane by lane in order, so that the sum of floats has one defined order. Values are [element][lane] arrays
// of 8-byte words. code: op | type << 8 | width << 16 | elements << 24. The old value is stored if `out` is not null.
void kb_atomic(Warp *warp, const u64 *address, u32 mask, const u64 *value, const u64 *other, u64 *out, u32 site, u32 code) {
    u32 op = code & 255, type = code >> 8 & 255, width = code >> 16 & 255, count = code >> 24;
    Site &tally = warp->run->sites[site];
    if (!mask) return;
    tally.requests++;
    tally.bytes += (u64)width * count * (u32)__builtin_popcount(mask);
    warp->run->lane_accesses += (u32)__builtin_popcount(mask);
    u64 seen[LANES], sectors[LANES];
    u32 lanes[LANES], seen_count = 0, sector_count = 0, most = 0;
    bool shared = false;
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        u64 at = address[i];
        if (at & (width * count - 1)) fault(warp, MISALIGNED, i, site, at, width * count);
        u8 *host = reach(warp, at, width * count, i, site, true);
        if (warp->clocks) san_atomic(warp, at, width * count, i, site, out != nullptr);
        u64 slot = at >> SLOT_SHIFT;
        if (slot >= SLOT_FIRST) {
            Slot &s = warp->run->slots[slot];
            u64 sector = (at & ((1ull << SLOT_SHIFT) - 1)) >> 5;
            if (s.read) s.read[sector >> 6] |= 1ull << (sector & 63);
            if (s.written) s.written[sector >> 6] |= 1ull << (sector & 63);
        }
        u32 k = 0;
        while (k < seen_count && seen[k] != at) k++;
        if (k == seen_count) seen[seen_count] = at, lanes[seen_count++] = 0; else tally.conflicts++;
        most = ++lanes[k] > most ? lanes[k] : most;
        if (slot >= SLOT_FIRST && warp->run->hot) count_hot(warp->run, at >> 2);
        shared = slot == SLOT_SHARED;
        k = 0;
        while (k < sector_count && sectors[k] != at >> 5) k++;
        if (k == sector_count) sectors[sector_count++] = at >> 5;
        for (u32 e = 0; e < count; e++) {
            u64 old = 0;
            memcpy(&old, host + e * width, width);
            u64 fresh = combine(op, type, width, old, value[e * LANES + i], other ? other[e * LANES + i] : 0);
            memcpy(host + e * width, &fresh, width);
            if (out) out[e * LANES + i] = old;
        }
    }
    kb_order(warp, 0);
    tally.sectors += shared ? most : sector_count;  // shared memory takes a pass for each lane on one word
}

void kb_trap(Warp *warp, u32 mask, u32 site) {
    if (mask) fault(warp, TRAP, first_lane(mask), site, 0, 0);
}

void kb_assertfail(Warp *warp, u32 mask, u32 site) {
    if (mask) fault(warp, ASSERTED, first_lane(mask), site, 0, 0);
}

// printf: the format's bytes and the arguments go to the run's text; what does not fit is dropped.
void kb_printf(Warp *warp, const u64 *format, const u64 *arguments, u32 mask, u32 site) {
    Run *run = warp->run;
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        u64 at = format[i], spot = arguments[i];
        for (u32 k = 0; k < 4096 && run->text_used + 64 < run->text_room; k++, at++) {
            char c = (char)*reach(warp, at, 1, i, site, false);
            if (!c) break;
            if (c != '%') {
                run->text[run->text_used++] = c;
                continue;
            }
            char spec[24] = "%";
            u32 n = 1;
            bool wide = false;
            for (; n < 20;) {
                at++, k++;
                c = (char)*reach(warp, at, 1, i, site, false);
                if (c == 'l' || c == 'z' || c == 'j') { wide = true; continue; }
                if (c == 'h') continue;
                bool digit = c >= '0' && c <= '9';
                if (digit && n > 2 && spec[n - 1] >= '0' && spec[n - 1] <= '9' && spec[n - 2] >= '0' && spec[n - 2] <= '9')
                    continue;  // a width over 99 would only cost time
                if (digit || c == '.' || c == '-' || c == '+' || c == ' ' || c == '#') {
                    spec[n++] = c;
                    continue;
                }
                break;
            }
            char piece[64];
            i32 length = 0;
            if (c == '%') {
                length = snprintf(piece, sizeof piece, "%%");
            } else if (c == 'f' || c == 'e' || c == 'g' || c == 'E' || c == 'G' || c == 'a') {
                spot = (spot + 7) & ~7ull;
                double v;
                memcpy(&v, reach(warp, spot, 8, i, site, false), 8);
                spot += 8, spec[n++] = c, spec[n] = 0;
                length = snprintf(piece, sizeof piece, spec, v);
            } else if (c == 'd' || c == 'i' || c == 'u' || c == 'x' || c == 'X' || c == 'o' || c == 'c' || c == 'p' || c == 's') {
                if (c == 'p' || c == 's') wide = true;
                u32 size = wide ? 8 : 4;
                spot = (spot + size - 1) & ~(u64)(size - 1);
                u64 v = 0;
                memcpy(&v, reach(warp, spot, size, i, site, false), size);
                spot += size;
                if (c == 'p' || c == 's') {  // a string argument shows as its address
                    length = snprintf(piece, sizeof piece, "0x%llx", (unsigned long long)v);
                } else {
                    bool is_signed = c == 'd' || c == 'i';
                    if (!wide && is_signed) v = (u64)(i64)(i32)(u32)v;
                    if (c != 'c') spec[n++] = 'l', spec[n++] = 'l';
                    spec[n++] = c, spec[n] = 0;
                    length = c == 'c' ? snprintf(piece, sizeof piece, spec, (int)v) : snprintf(piece, sizeof piece, spec, (long long)v);
                }
            }
            for (i32 j = 0; j < length && j < 63 && run->text_used < run->text_room; j++) run->text[run->text_used++] = piece[j];
        }
    }
}
}
