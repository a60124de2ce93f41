// Asynchronous copies and barriers in shared memory. A copy's bytes are read when it is issued and arrive only
// when the warp waits for its group, so that a missing wait shows as stale data.
#include <stdlib.h>

#include "runtime.h"

// Finishes the copies of all groups but the `keep` newest committed ones; ~0 finishes everything.
void complete(Warp *warp, u32 keep) {
    u32 left = 0;
    for (u32 i = 0; i < warp->pending_count; i++) {
        Pending &copy = warp->pending[i];
        if (keep == ~0u || copy.group + keep < warp->group_now) {
            memcpy(warp->block->shared + copy.target, copy.data, copy.bytes);  // the range was checked at issue
            if (warp->clocks) san_arrived(warp, (u64)SLOT_SHARED << SLOT_SHIFT | copy.target, copy.bytes, copy.lane, copy.pad);
        } else {
            warp->pending[left++] = copy;
        }
    }
    warp->pending_count = left;
}

static Pending &new_pending(Warp *warp) {
    if (warp->pending_count == warp->pending_room) {
        warp->pending_room = warp->pending_room ? 2 * warp->pending_room : 256;
        warp->pending = (Pending *)realloc(warp->pending, warp->pending_room * sizeof(Pending));
    }
    return warp->pending[warp->pending_count++];
}

// An mbarrier's 64 bits: expected arrivals (20), arrivals missing (20), bytes missing (23, signed), phase (1).
static u64 pack_barrier(u64 expected, i64 missing, i64 bytes, u64 phase) {
    return (expected & 0xfffff) | ((u64)missing & 0xfffff) << 20 | ((u64)bytes & 0x7fffff) << 40 | phase << 63;
}

static u64 *barrier_at(Warp *warp, u64 address, u32 lane, u32 site) {
    if (address & 7) fault(warp, MISALIGNED, lane, site, address, 8);
    if (address >> SLOT_SHIFT != SLOT_SHARED) fault(warp, OUT_OF_BOUNDS, lane, site, address, 8);
    return (u64 *)reach(warp, address, 8, lane, site, true);
}

static void update_barrier(u64 *barrier, i64 arrive, i64 bytes) {
    u64 v = *barrier;
    u64 expected = v & 0xfffff, phase = v >> 63;
    i64 missing = (i64)(v >> 20 & 0xfffff) - arrive;
    i64 left = ((i64)(v >> 40 & 0x7fffff) << 41 >> 41) + bytes;
    if (missing <= 0 && left == 0) missing = (i64)expected, phase ^= 1;
    *barrier = pack_barrier(expected, missing, left, phase);
}

extern "C" {
// cp.async: `size` (null: all) says how many of `width` bytes are read, the rest is zero.
void kb_cp_async(Warp *warp, const u32 *target, const u64 *source, const u32 *size, u32 mask, u32 width, u32 load_site, u32 store_site) {
    Reached to, from;
    u32 reading = 0;
    if (!mask) return;
    for (u32 i = 0; i < LANES; i++) reading |= (u32)(!size || size[i]) << i;
    reading &= mask;
    reach_shared(warp, target, mask, width, store_site, to);
    bool partial = false;
    for (u32 i = 0; i < LANES; i++) partial |= size && (reading >> i & 1) && size[i] < width;
    if (reading && !partial) reach_global(warp, source, reading, width, load_site, false, true, from);
    warp->run->lane_accesses += 2 * (u32)__builtin_popcount(mask);
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        Pending &copy = new_pending(warp);
        memset(copy.data, 0, sizeof copy.data);
        if (partial && (reading >> i & 1)) {
            u32 bytes = size[i] < width ? size[i] : width;
            memcpy(copy.data, reach(warp, source[i], bytes, i, load_site, false), bytes);
        } else if (reading >> i & 1) {
            memcpy(copy.data, lane_address(from, i, width), width);
        }
        copy.target = (u64)(lane_address(to, i, width) - warp->block->shared);
        copy.bytes = width, copy.group = warp->group_now, copy.lane = i, copy.pad = store_site;
        if (!warp->clocks) continue;
        if (reading >> i & 1) san_read(warp, source[i], size && size[i] < width ? size[i] : width, i, load_site, 0);
        san_arriving(warp, (u64)SLOT_SHARED << SLOT_SHIFT | copy.target, width, i, store_site);
    }
}

void kb_commit(Warp *warp) { warp->group_now++; }
void kb_wait(Warp *warp, u32 keep) { complete(warp, keep); }

// op: 0 init, 1 arrive (count), 2 expect_tx only, 3 arrive with expect_tx, 4 complete_tx, 5 arrive after the copies of cp.async,
// 6 inval. `state` gets the barrier's value before.
void kb_mbarrier(Warp *warp, const u64 *address, u32 mask, const u32 *count, u64 *state, u32 op, u32 site) {
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        u64 *barrier = barrier_at(warp, address[i], i, site);
        if (warp->clocks && op == 0) san_write(warp, address[i], 8, i, site, 1, nullptr);
        if (warp->clocks && op) san_sync(warp, address[i], false, true, 4);
        if (state) state[i] = *barrier;
        if (op == 0) *barrier = pack_barrier(count[i], count[i], 0, 0);
        if (op == 1) update_barrier(barrier, count[i], 0);
        if (op == 2 || op == 3) {
            u64 v = *barrier;
            i64 left = ((i64)(v >> 40 & 0x7fffff) << 41 >> 41) + count[i];
            *barrier = (v & ~(0x7fffffull << 40)) | ((u64)left & 0x7fffff) << 40;
            if (op == 3) update_barrier(barrier, 1, 0);
        }
        if (op == 4) update_barrier(barrier, 0, -(i64)count[i]);
        if (op == 5) complete(warp, ~0u), update_barrier(barrier, 1, 0);
    }
}

// Whether the phase that `state` (or a parity, if by_parity) names has ended, as lane bits. A warp that finds it
// has not gives up its turn at the next backward branch.
u32 kb_mbarrier_test(Warp *warp, const u64 *address, u32 mask, const u64 *state, u32 by_parity, u32 site) {
    u32 done = 0;
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        u64 phase = *barrier_at(warp, address[i], i, site) >> 63;
        u64 asked = by_parity ? state[i] & 1 : state[i] >> 63;
        done |= (u32)(phase != asked) << i;
        if (warp->clocks && phase != asked) san_sync(warp, address[i], true, false, 2);
    }
    if (done != mask) warp->limit = 0;  // whatever of this block is counted already
    return done;
}

// cp.async.bulk between global and shared memory: direction 0 into shared with an mbarrier, 1 out of it.
void kb_bulk(Warp *warp, const u64 *target, const u64 *source, const u32 *bytes, const u64 *barrier, u32 mask, u32 site) {
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m), size = bytes[i];
        if ((size | target[i] | source[i]) & 15) fault(warp, MISALIGNED, i, site, target[i], size);
        if (!size) continue;
        u8 *to = reach(warp, target[i], size, i, site, true), *from = reach(warp, source[i], size, i, site, false);
        if (warp->clocks) san_read(warp, source[i], size, i, site, 0), san_write(warp, target[i], size, i, site, 0, nullptr);
        memmove(to, from, size);
        Site &tally = warp->run->sites[site];
        tally.requests += (size + 127) / 128, tally.sectors += (size + 31) / 32, tally.bytes += size;
        for (u32 side = 0; side < 2; side++) {
            u64 at = side ? target[i] : source[i], slot = at >> SLOT_SHIFT, offset = at & ((1ull << SLOT_SHIFT) - 1);
            if (slot < SLOT_FIRST || slot >= SLOTS) continue;
            u64 *bitmap = side ? warp->run->slots[slot].written : warp->run->slots[slot].read;
            for (u64 s = offset >> 5; bitmap && s <= (offset + size - 1) >> 5; s++) bitmap[s >> 6] |= 1ull << (s & 63);
        }
        if (barrier) update_barrier(barrier_at(warp, barrier[i], i, site), 0, -(i64)size);
    }
}
}
