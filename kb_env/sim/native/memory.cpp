// Loads and stores. Every address is checked against the slot table; sectors and bank conflicts are counted
// from the 32 addresses of the request. Values travel as [element][lane] arrays of `size` bytes each.
#include <stdio.h>

#include "runtime.h"

enum Space { GENERIC = 0, GLOBAL = 1, SHARED = 2, LOCAL = 3, CONST = 4 };

// The block whose shared memory an offset is in, or null; takes the rank out of the offset.
Block *shared_owner(Warp *warp, u64 &offset) {
    u64 rank = offset >> 24;
    offset &= 0xffffff;
    if (!rank) return warp->block;
    Cluster *cluster = warp->block->cluster;
    return rank <= cluster->size ? cluster->peers[rank - 1] : nullptr;
}

// Host address of `width` bytes that one lane wants, or a fault.
u8 *reach(Warp *warp, u64 address, u64 width, u32 lane, u32 site, bool write) {
    u64 slot = address >> SLOT_SHIFT, offset = address & ((1ull << SLOT_SHIFT) - 1);
    Run *run = warp->run;
    if (slot == SLOT_SHARED) {
        Block *owner = shared_owner(warp, offset);
        if (!owner || offset + width > run->shared_bytes) fault(warp, OUT_OF_BOUNDS, lane, site, address, width);
        return owner->shared + offset;
    }
    if (slot == SLOT_LOCAL) {
        if (offset + width > run->local_bytes) fault(warp, OUT_OF_BOUNDS, lane, site, address, width);
        return warp->local + lane * run->local_bytes + offset;
    }
    if (slot >= SLOTS || offset + width > run->slots[slot].nbytes || (write && !run->slots[slot].writable))
        fault(warp, OUT_OF_BOUNDS, lane, site, address, width);
    return run->slots[slot].host + offset;
}

static void mark(u64 *bitmap, u64 sector) { bitmap[sector >> 6] |= 1ull << (sector & 63); }

// Distinct values among the active lanes' `value`, each handed to `each` once.
template <class Each> static u32 distinct(const u64 *value, u32 mask, Each each) {
    u64 seen[64];
    u8 used[64] = {0};
    u32 count = 0;
    u64 last = ~0ull;
    for (; mask; mask &= mask - 1) {
        u64 v = value[first_lane(mask)];
        if (v == last) continue;
        last = v;
        u32 h = (u32)(v * 0x9E3779B97F4A7C15ull >> 58);
        while (used[h] && seen[h] != v) h = (h + 1) & 63;
        if (used[h]) continue;
        used[h] = 1, seen[h] = v, count++;
        each(v);
    }
    return count;
}

static u32 count_sectors(const u64 *sector, u32 mask, u64 *bitmap) {
    if (mask == ~0u) {
        u64 down = 0;
        u32 changes = 0;
        for (u32 i = 1; i < LANES; i++) {
            down |= (u64)(sector[i] < sector[i - 1]);
            changes += sector[i] != sector[i - 1];
        }
        if (!down) {
            if (bitmap) {
                if (sector[31] - sector[0] == changes && (sector[0] & 63) + changes < 64) {  // one word of the bitmap
                    bitmap[sector[0] >> 6] |= (changes == 63 ? ~0ull : (1ull << (changes + 1)) - 1) << (sector[0] & 63);
                } else {
                    for (u32 i = 0; i < LANES; i++) mark(bitmap, sector[i]);
                }
            }
            return changes + 1;
        }
        u64 differ = 0;
        down = 0, changes = 0;
        for (u32 i = 0; i < 16; i++) differ |= sector[i] ^ sector[i + 16];
        for (u32 i = 1; i < 16; i++) down |= (u64)(sector[i] < sector[i - 1]), changes += sector[i] != sector[i - 1];
        if (!differ && !down) {
            if (bitmap)
                for (u32 i = 0; i < 16; i++) mark(bitmap, sector[i]);
            return changes + 1;
        }
    }
    if (!bitmap) return distinct(sector, mask, [](u64) {});
    return distinct(sector, mask, [=](u64 v) { mark(bitmap, v); });
}

static u32 count_lines(const u64 *sector, u32 mask) {
    u64 line[LANES];
    for (u32 i = 0; i < LANES; i++) line[i] = sector[i] >> 2;
    return count_sectors(line, mask, nullptr);
}

// A load of one sector in a sampled run: how many loads of a warp lie between it and the last one by this block.
// Warps of a block are taken to go on side by side, whichever the simulator runs first.
// Returns whether the sector is new to the block, or was when another warp loaded it at the same time.
static bool touch(Warp *warp, u64 *stamps, u64 sector) {
    Run *run = warp->run;
    u64 block = warp->block->linear + 1, last = stamps[sector];
    u32 now = warp->loads & 0x7fffffff, before = (u32)last & 0x7fffffff;
    bool first = last >> 32 != block, cold = first || (now == before && (last >> 31 & 1));
    stamps[sector] = block << 32 | (u64)cold << 31 | now;
    if (first) {
        run->first_sectors++;
        return true;
    }
    u32 between = now > before ? now - before : before - now;
    u32 bin = between ? (33 - (u32)__builtin_clz(between)) / 2 : 0;  // 0, 1-3, 4-15, 16-63, ...
    bin = bin < REUSES ? bin : REUSES - 1;
    run->reuse[bin]++, run->between[bin] += between;
    return cold;
}

static bool touch_range(Warp *warp, u64 *stamps, u64 low, u64 high) {
    bool cold = false;
    for (u64 s = low; s <= high; s++) cold |= touch(warp, stamps, s);
    return cold;
}

static void mark_range(u64 *bitmap, u64 low, u64 high) {
    if (low >> 6 == high >> 6)
        bitmap[low >> 6] |= (high - low == 63 ? ~0ull : (1ull << (high - low + 1)) - 1) << (low & 63);
    else
        for (u64 s = low; s <= high; s++) mark(bitmap, s);
}

// Whether 16 addresses follow one another (1), are equal (0), or neither (-1).
template <class T> static i32 half_pattern(const T *address, u32 width) {
    T line = 0, equal = 0;
    for (u32 i = 0; i < 16; i++) line |= address[i] ^ (T)(address[0] + i * width), equal |= address[i] ^ address[0];
    return !equal ? 0 : !line ? 1 : -1;
}

// A full warp whose half-warps are each contiguous or uniform, as blocks of 16 columns make them.
static bool reach_halves(Warp *warp, Site &tally, const u64 *address, u32 width, u64 slot, bool write, bool counted, Reached &out) {
    if (slot >= SLOTS || slot < SLOT_PARAM) return false;
    Slot &target = warp->run->slots[slot];
    if (write && !target.writable) return false;
    u64 low[2], high[2];
    for (u32 h = 0; h < 2; h++) {
        i32 step = half_pattern(address + 16 * h, width);
        u64 offset = address[16 * h] - (slot << SLOT_SHIFT), span = step == 1 ? 16 * (u64)width : width;
        if (step < 0 || offset > target.nbytes || offset + span > target.nbytes || (offset & (width - 1))) return false;
        out.half[h] = target.host + offset, out.step[h] = (u32)step;
        low[h] = offset >> 5, high[h] = (offset + span - 1) >> 5;
    }
    u64 *bitmap = counted ? (write ? target.written : target.read) : nullptr;
    if (bitmap) mark_range(bitmap, low[0], high[0]), mark_range(bitmap, low[1], high[1]);
    u64 first = low[0] > low[1] ? low[0] : low[1], last = high[0] < high[1] ? high[0] : high[1];
    tally.sectors += high[0] - low[0] + high[1] - low[1] + 2 - (last >= first ? last - first + 1 : 0);
    u64 first_line = first >> 2, last_line = last >> 2;
    tally.conflicts += (high[0] >> 2) - (low[0] >> 2) + (high[1] >> 2) - (low[1] >> 2) + 2;
    if (last_line >= first_line) tally.conflicts -= last_line - first_line + 1;
    if (bitmap && !write && target.stamps) {
        bool cold = touch_range(warp, target.stamps, low[0], high[0]);
        for (u64 s = low[1]; s <= high[1]; s++)
            if (s < low[0] || s > high[0]) cold |= touch(warp, target.stamps, s);
        tally.cold += cold;
    }
    out.base = nullptr, out.pattern = 3;
    return true;
}

// Checks a request to global memory and counts its sectors.
void reach_global(Warp *warp, const u64 *address, u32 mask, u32 width, u32 site, bool write, bool counted, Reached &out) {
    Run *run = warp->run;
    Site &tally = run->sites[site];
    u32 first = first_lane(mask);
    u64 origin = address[first], slot = origin >> SLOT_SHIFT, base = slot << SLOT_SHIFT;
    tally.requests++;
    tally.bytes += (u64)width * (u32)__builtin_popcount(mask);
    warp->loads += !write;
    u64 line = 0, equal = 0;
    for (u32 i = 0; i < LANES; i++) line |= address[i] ^ (address[0] + (u64)i * width), equal |= address[i] ^ address[0];
    if (mask == ~0u && (!line || !equal)) {
        u64 span = line ? width : (u64)width * LANES, offset = origin - base;
        if (origin & (width - 1)) fault(warp, MISALIGNED, first, site, origin, width);
        if (slot < SLOTS && slot >= SLOT_PARAM && offset + span <= run->slots[slot].nbytes && (!write || run->slots[slot].writable)) {
            Slot &target = run->slots[slot];
            u64 low = offset >> 5, high = (offset + span - 1) >> 5;
            tally.sectors += high - low + 1;
            tally.conflicts += (high >> 2) - (low >> 2) + 1;
            u64 *bitmap = write ? target.written : target.read;
            if (bitmap && counted) {
                mark_range(bitmap, low, high);
                if (!write && target.stamps) tally.cold += touch_range(warp, target.stamps, low, high);
            }
            out.base = target.host + offset;
            out.pattern = line ? 2 : 1;
            return;
        }
    }
    if (mask == ~0u && reach_halves(warp, tally, address, width, slot, write, counted, out)) return;
    u64 odd = 0, foreign = 0, farthest = 0;
    for (u32 i = 0; i < LANES; i++) {
        u64 here = (mask >> i & 1) ? address[i] : origin;
        odd |= here & (width - 1);
        foreign |= (here >> SLOT_SHIFT) ^ slot;
        u64 offset = here - base;
        farthest = offset > farthest ? offset : farthest;
        out.offset[i] = offset;
    }
    out.pattern = 0;
    bool inside = slot < SLOTS && slot >= SLOT_PARAM && farthest + width <= run->slots[slot].nbytes && (!write || run->slots[slot].writable);
    if (odd || foreign || !inside) {
        // Someone is at fault, or the lanes use several buffers: lane by lane.
        u64 *touched[LANES];
        u64 sector[LANES];
        for (u32 i = 0; i < LANES; i++) {
            if (!(mask >> i & 1)) continue;
            if (address[i] & (width - 1)) fault(warp, MISALIGNED, i, site, address[i], width);
            u64 lane_slot = address[i] >> SLOT_SHIFT;
            if (lane_slot == SLOT_SHARED || lane_slot == SLOT_LOCAL) fault(warp, OUT_OF_BOUNDS, i, site, address[i], width);
            out.offset[i] = (u64)reach(warp, address[i], width, i, site, write);
            touched[i] = write ? run->slots[lane_slot].written : run->slots[lane_slot].read;
            sector[i] = address[i] >> 5;
            if (touched[i] && counted) mark(touched[i], (address[i] & ((1ull << SLOT_SHIFT) - 1)) >> 5);
        }
        for (u32 i = 0; i < LANES; i++)
            if (!(mask >> i & 1)) out.offset[i] = out.offset[first];
        out.base = nullptr;
        tally.sectors += count_sectors(sector, mask, nullptr);
        tally.conflicts += count_lines(sector, mask);
        return;
    }
    Slot &target = run->slots[slot];
    out.base = target.host;
    u64 sector[LANES];
    for (u32 i = 0; i < LANES; i++) sector[i] = out.offset[i] >> 5;
    tally.conflicts += count_lines(sector, mask);
    if (!write && counted && target.stamps) {
        u64 *stamps = target.stamps;
        bool cold = false;
        distinct(sector, mask, [&](u64 v) { cold |= touch(warp, stamps, v); });
        tally.cold += cold;
    }
    tally.sectors += count_sectors(sector, mask, counted ? (write ? target.written : target.read) : nullptr);
}

// Most distinct words that one bank serves for these lanes.
static u32 bank_passes(const u32 *offset, u32 mask, u32 words) {
    u32 seen[32][32];
    u8 count[32] = {0};
    u32 most = 0;
    for (; mask; mask &= mask - 1) {
        u32 word = offset[first_lane(mask)] >> 2;
        for (u32 w = 0; w < words; w++, word++) {
            u32 bank = word & 31, k = 0, n = count[bank];
            while (k < n && seen[bank][k] != word) k++;
            if (k < n || n == 32) continue;
            seen[bank][n] = word;
            count[bank] = (u8)(n + 1);
            most = n + 1u > most ? n + 1u : most;
        }
    }
    return most;
}

static bool pairs_agree(const u32 *offset, u32 mask, u32 distance) {
    for (u32 i = 0; i < LANES; i++) {
        u32 j = i ^ distance;
        if ((mask >> i & 1) && (mask >> j & 1) && offset[i] != offset[j]) return false;
    }
    return true;
}

// Wavefronts of a shared-memory request. Wide requests are served in halves or quarters of a warp; two parts go
// together if neighbouring lanes (distance 1, or distance 2) read the same address.
u32 wavefronts(const u32 *offset, u32 mask, u32 width) {
    if (width <= 4) {
        if (mask == ~0u) {  // no conflict if no two lanes are in one bank with different words
            u32 equal = 0, line = 0;
            for (u32 i = 0; i < LANES; i++) equal |= offset[i] ^ offset[0], line |= (offset[i] >> 2) ^ ((offset[0] >> 2) + i);
            if (!equal || !line) return 1;
        }
        return bank_passes(offset, mask, 1);
    }
    u32 parts = width == 8 ? 2 : 4, lanes = LANES / parts, total = 0;
    u32 group = pairs_agree(offset, mask, 1) || pairs_agree(offset, mask, 2) ? lanes * 2 : lanes;
    for (u32 start = 0; start < LANES; start += group) {
        u32 part = mask & (group == 32 ? ~0u : ((1u << group) - 1) << start);
        if (part) total += bank_passes(offset, part, width / 4);
    }
    return total;
}

void reach_shared(Warp *warp, const u32 *address, u32 mask, u32 width, u32 site, Reached &out) {
    Run *run = warp->run;
    Site &tally = run->sites[site];
    u32 first = first_lane(mask), origin = address[first], odd = 0, farthest = 0;
    u32 here[LANES];
    for (u32 i = 0; i < LANES; i++) {
        here[i] = (mask >> i & 1) ? address[i] : origin;
        odd |= here[i] & (width - 1);
        farthest = here[i] > farthest ? here[i] : farthest;
        out.offset[i] = here[i];
    }
    if (odd || (u64)farthest + width > run->shared_bytes)
        for (u32 i = 0; i < LANES; i++) {
            if (here[i] & (width - 1)) fault(warp, MISALIGNED, i, site, (u64)SLOT_SHARED << SLOT_SHIFT | here[i], width);
            if ((u64)here[i] + width > run->shared_bytes) fault(warp, OUT_OF_BOUNDS, i, site, (u64)SLOT_SHARED << SLOT_SHIFT | here[i], width);
        }
    out.base = warp->block->shared;
    u32 equal = 0, line = 0;
    for (u32 i = 0; i < LANES; i++) equal |= here[i] ^ here[0], line |= here[i] ^ (here[0] + i * width);
    out.pattern = !equal ? 2 : !line ? 1 : 0;
    if (out.pattern) out.base += here[0];
    tally.requests++;
    tally.bytes += (u64)width * (u32)__builtin_popcount(mask);
    if (width == 4 && out.pattern) {
        tally.sectors++;
        return;
    }
    if (width == 4 && mask == ~0u) {
        i32 first_step = half_pattern(here, 4), second_step = half_pattern(here + 16, 4);
        if (first_step >= 0 && second_step >= 0) {
            out.pattern = 3, out.step[0] = (u32)first_step, out.step[1] = (u32)second_step;
            out.half[0] = out.base + here[0], out.half[1] = out.base + here[16];
            if (here[0] == here[16] || (!first_step && !second_step)) {
                tally.sectors += here[0] != here[16] && !((here[0] ^ here[16]) >> 2 & 31) ? 2 : 1;
                return;
            }
        }
    }
    tally.sectors += wavefronts(here, mask, width);
}

static void reach_local(Warp *warp, const u64 *address, u32 mask, u32 width, u32 site, Reached &out) {
    Run *run = warp->run;
    Site &tally = run->sites[site];
    tally.requests++;
    tally.bytes += (u64)width * (u32)__builtin_popcount(mask);
    u64 sector[LANES];
    for (u32 i = 0; i < LANES; i++) {
        u64 offset = (mask >> i & 1) ? address[i] & ((1ull << SLOT_SHIFT) - 1) : address[first_lane(mask)] & ((1ull << SLOT_SHIFT) - 1);
        if (offset + width > run->local_bytes) fault(warp, OUT_OF_BOUNDS, i, site, (u64)SLOT_LOCAL << SLOT_SHIFT | offset, width);
        if (offset & (width - 1)) fault(warp, MISALIGNED, i, site, (u64)SLOT_LOCAL << SLOT_SHIFT | offset, width);
        out.offset[i] = i * run->local_bytes + offset;
        sector[i] = (offset >> 2) * 4 + (i >> 3);  // the hardware interleaves lanes by words of 4 bytes
    }
    out.base = warp->local, out.pattern = 0;
    tally.sectors += count_sectors(sector, mask, nullptr) * (width > 4 ? width / 4 : 1);
}

void reach_generic(Warp *warp, const u64 *address, u32 mask, u32 width, u32 site, bool write, Reached &out) {
    u32 spaces = 0;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u64 slot = address[i] >> SLOT_SHIFT;
        if (slot == SLOT_SHARED && address[i] >> 24 & 0xfff) spaces |= 8;
        spaces |= slot == SLOT_SHARED ? 1 : slot == SLOT_LOCAL ? 2 : 4;
    }
    if (spaces == 4) return reach_global(warp, address, mask, width, site, write, true, out);
    if (spaces == 2) return reach_local(warp, address, mask, width, site, out);
    if (spaces == 1) {
        u32 offset[LANES];
        for (u32 i = 0; i < LANES; i++) {
            u64 low = address[i] & ((1ull << SLOT_SHIFT) - 1);
            offset[i] = low > 0xffffff00u ? 0xffffff00u : (u32)low;
        }
        return reach_shared(warp, offset, mask, width, site, out);
    }
    u64 sector[LANES];
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        if (address[i] & (width - 1)) fault(warp, MISALIGNED, i, site, address[i], width);
        out.offset[i] = (u64)reach(warp, address[i], width, i, site, write);
        sector[i] = address[i] >> 5;
    }
    for (u32 i = 0; i < LANES; i++)
        if (!(mask >> i & 1)) out.offset[i] = out.offset[first_lane(mask)];
    out.base = nullptr, out.pattern = 0;
    Site &tally = warp->run->sites[site];
    tally.requests++, tally.bytes += (u64)width * (u32)__builtin_popcount(mask);
    tally.sectors += count_sectors(sector, mask, nullptr);
}

template <int SPACE> static void reach_space(Warp *warp, const void *address, u32 mask, u32 width, u32 site, bool write, Reached &out) {
    warp->run->lane_accesses += (u32)__builtin_popcount(mask);
    if (SPACE == GLOBAL) reach_global(warp, (const u64 *)address, mask, width, site, write, true, out);
    if (SPACE == CONST) reach_global(warp, (const u64 *)address, mask, width, site, write, false, out);
    if (SPACE == SHARED) reach_shared(warp, (const u32 *)address, mask, width, site, out);
    if (SPACE == LOCAL) reach_local(warp, (const u64 *)address, mask, width, site, out);
    if (SPACE == GENERIC) reach_generic(warp, (const u64 *)address, mask, width, site, write, out);
}

template <class T, int COUNT> static void gather(const Reached &at, void *values) {
    T *out = (T *)values;
    if (at.pattern == 1 && COUNT == 1) {
        memcpy(out, at.base, sizeof(T) * LANES);
    } else if (at.pattern == 1) {
        const T *in = (const T *)at.base;
        for (u32 k = 0; k < COUNT; k++)
            for (u32 i = 0; i < LANES; i++) out[k * LANES + i] = in[i * COUNT + k];
    } else if (at.pattern == 2) {
        const T *in = (const T *)at.base;
        for (u32 k = 0; k < COUNT; k++)
            for (u32 i = 0; i < LANES; i++) out[k * LANES + i] = in[k];
    } else if (at.pattern == 3) {
        for (u32 h = 0; h < 2; h++) {
            const T *in = (const T *)at.half[h];
            for (u32 k = 0; k < COUNT; k++) {
                T *to = out + k * LANES + 16 * h;
                if (!at.step[h])
                    for (u32 i = 0; i < 16; i++) to[i] = in[k];
                else if (COUNT == 1)
                    memcpy(to, in, sizeof(T) * 16);
                else
                    for (u32 i = 0; i < 16; i++) to[i] = in[i * COUNT + k];
            }
        }
    } else {
        for (u32 i = 0; i < LANES; i++) {
            const T *in = (const T *)(at.base + at.offset[i]);
            for (u32 k = 0; k < COUNT; k++) out[k * LANES + i] = in[k];
        }
    }
}

template <class T, int COUNT> static void scatter(const Reached &at, const void *values, u32 mask) {
    const T *in = (const T *)values;
    if (at.pattern == 1 && mask == ~0u) {
        T *out = (T *)at.base;
        if (COUNT == 1)
            memcpy(out, in, sizeof(T) * LANES);
        else
            for (u32 i = 0; i < LANES; i++)
                for (u32 k = 0; k < COUNT; k++) out[i * COUNT + k] = in[k * LANES + i];
        return;
    }
    for (; mask; mask &= mask - 1) {
        u32 i = first_lane(mask);
        T *out = (T *)lane_address(at, i, sizeof(T) * COUNT);
        for (u32 k = 0; k < COUNT; k++) out[k] = in[k * LANES + i];
    }
}

template <class T> static void load_as(const Reached &at, void *values, u32 count) {
    if (count == 1) gather<T, 1>(at, values);
    if (count == 2) gather<T, 2>(at, values);
    if (count == 4) gather<T, 4>(at, values);
    if (count == 8) gather<T, 8>(at, values);
}

template <class T> static void store_as(const Reached &at, const void *values, u32 count, u32 mask) {
    if (count == 1) scatter<T, 1>(at, values, mask);
    if (count == 2) scatter<T, 2>(at, values, mask);
    if (count == 4) scatter<T, 4>(at, values, mask);
    if (count == 8) scatter<T, 8>(at, values, mask);
}

// The request's addresses in full, for the sanitizer.
template <int SPACE> static void watch(Warp *warp, const void *address, u32 mask, const void *values, u32 site, u32 shape) {
    u64 full[LANES];
    for (u32 i = 0; i < LANES; i++) {
        u64 offset = SPACE == SHARED ? ((const u32 *)address)[i] : ((const u64 *)address)[i];
        if (SPACE == LOCAL) offset &= (1ull << SLOT_SHIFT) - 1;
        full[i] = SPACE == SHARED ? (u64)SLOT_SHARED << SLOT_SHIFT | offset : SPACE == LOCAL ? (u64)SLOT_LOCAL << SLOT_SHIFT | offset : offset;
    }
    san_request(warp, full, mask, 1u << (shape & 255), shape >> 8, site, values);
}

// shape: log2 of the element size, and the element count shifted left by 8.
template <int SPACE> static void load(Warp *warp, const void *address, u32 mask, void *values, u32 site, u32 shape) {
    u32 count = shape >> 8, log = shape & 255;
    Reached at;
    if (!mask) return;
    reach_space<SPACE>(warp, address, mask, count << log, site, false, at);
    if (warp->clocks) watch<SPACE>(warp, address, mask, nullptr, site, shape);
    if (shape == (1 << 8 | 2)) return gather<u32, 1>(at, values);
    if (log == 0) load_as<u8>(at, values, count);
    if (log == 1) load_as<u16>(at, values, count);
    if (log == 2) load_as<u32>(at, values, count);
    if (log == 3) load_as<u64>(at, values, count);
}

template <int SPACE> static void store(Warp *warp, const void *address, u32 mask, const void *values, u32 site, u32 shape) {
    u32 count = shape >> 8, log = shape & 255;
    Reached at;
    if (!mask) return;
    reach_space<SPACE>(warp, address, mask, count << log, site, true, at);
    if (warp->clocks) watch<SPACE>(warp, address, mask, values, site, shape);
    if (log == 0) store_as<u8>(at, values, count, mask);
    if (log == 1) store_as<u16>(at, values, count, mask);
    if (log == 2) store_as<u32>(at, values, count, mask);
    if (log == 3) store_as<u64>(at, values, count, mask);
}

extern "C" {
#define BOTH(NAME, SPACE)                                                                                       \
    void kb_load_##NAME(Warp *w, const void *a, u32 m, void *v, u32 s, u32 t) { load<SPACE>(w, a, m, v, s, t); } \
    void kb_store_##NAME(Warp *w, const void *a, u32 m, const void *v, u32 s, u32 t) { store<SPACE>(w, a, m, v, s, t); }
BOTH(generic, GENERIC)
BOTH(global, GLOBAL)
BOTH(shared, SHARED)
BOTH(local, LOCAL)
BOTH(const, CONST)
}
