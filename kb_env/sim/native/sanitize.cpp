// The sanitizer: who touched each byte last, in what order that came, and whether the byte was ever written.
//
// Order is that of vector clocks (Flanagan and Freund, "FastTrack", PLDI 2009). A warp has a clock for each warp of its
// block and what it knows of other blocks. Barriers join the clocks of the warps that meet; a fence makes what the warp
// knows ready to be published by a later atomic or volatile store; atomics and volatile loads take over what was
// published at their address. Two accesses to a byte race if one is a write, neither comes before the other in this
// order, and not both are atomic or volatile. A write of the bytes that are there already does not count.
#include <stdlib.h>

#include "runtime.h"

enum { STRONG = 1, ACQUIRE = 2, RELEASE = 4 };
enum { ABSENT = 0, DEFINED = 1, ARRIVING = 2 };
enum { CTA = 0, GPU = 1 };

struct Cell {  // of one byte: stamps of the last write, the last read, and one before it by another thread
    u64 write, read, other;
};

struct Know {  // what is known of blocks, sorted: clocks of the 32 warps of each
    u32 count, *block, **clock;
};

struct Var {  // what was published at an address
    u64 key;
    Know *know;
};

struct Clocks {  // of one warp
    u32 now[LANES];
    Know *know;
    u32 fenced[2][LANES];  // state at the last fence, by scope
    Know *fenced_know[2], *ready[2];
    u32 has_fence[2], order;
};

struct Meeting {  // of one barrier
    u32 clock[LANES], fenced[2][LANES], has_fence[2];
    Know *know, *fenced_know[2];
};

struct Watch {  // of one launch
    Cell *cells[SLOTS];
    Var *vars;
    u64 var_count, var_room;
    u8 *arena, *chunks[4096];
    u64 arena_used, arena_room;
    u32 chunk_count;
};

struct Shadow {  // of one block
    Cell *cells;
    u8 *defined;
    Meeting meeting[BARRIERS];
};

static void *take(Watch *watch, u64 bytes) {
    bytes = (bytes + 7) & ~7ull;
    if (watch->arena_used + bytes > watch->arena_room) {
        u64 size = bytes > (1 << 20) ? bytes : 1 << 20;
        if (watch->chunk_count == 4096) abort();  // 4 GiB of clocks: the process ends, its parent reports it
        watch->arena = watch->chunks[watch->chunk_count++] = (u8 *)malloc(size);
        if (!watch->arena) abort();
        watch->arena_used = 0, watch->arena_room = size;
    }
    void *out = watch->arena + watch->arena_used;
    watch->arena_used += bytes;
    return out;
}

static Know *new_know(Watch *watch, u32 count) {
    Know *know = (Know *)take(watch, sizeof(Know));
    know->count = count;
    know->block = (u32 *)take(watch, 4ull * count), know->clock = (u32 **)take(watch, 8ull * count);
    return know;
}

static bool covers(const u32 *high, const u32 *low) {
    if (high == low) return true;
    u32 above = 0;
    for (u32 i = 0; i < LANES; i++) above |= low[i] > high[i];
    return !above;
}

static u32 *higher(Watch *watch, u32 *a, u32 *b) {
    if (covers(a, b)) return a;
    if (covers(b, a)) return b;
    u32 *out = (u32 *)take(watch, 4 * LANES);
    for (u32 i = 0; i < LANES; i++) out[i] = a[i] > b[i] ? a[i] : b[i];
    return out;
}

static Know *join(Watch *watch, Know *a, Know *b) {
    if (!b || a == b) return a;
    if (!a) return b;
    bool within = true;
    for (u32 i = 0, j = 0; j < b->count && within; j++) {
        while (i < a->count && a->block[i] < b->block[j]) i++;
        within = i < a->count && a->block[i] == b->block[j] && covers(a->clock[i], b->clock[j]);
    }
    if (within) return a;
    Know *out = new_know(watch, a->count + b->count);
    u32 i = 0, j = 0, n = 0;
    while (i < a->count || j < b->count) {
        u32 x = i < a->count ? a->block[i] : ~0u, y = j < b->count ? b->block[j] : ~0u;
        out->block[n] = x < y ? x : y;
        out->clock[n++] = x == y ? higher(watch, a->clock[i], b->clock[j]) : x < y ? a->clock[i] : b->clock[j];
        i += x <= y, j += y <= x;
    }
    out->count = n;
    return out;
}

static const u32 *clocks_of(const Know *know, u32 block) {
    if (!know) return nullptr;
    u32 low = 0, high = know->count;
    while (low < high) {
        u32 mid = (low + high) / 2;
        if (know->block[mid] < block) low = mid + 1; else high = mid;
    }
    return low < know->count && know->block[low] == block ? know->clock[low] : nullptr;
}

// A stamp: 1 | block (20) | warp (5) | lane (5) | clock (19) | site (12) | strong. Clocks that do not fit order everything.
static u64 stamp_of(Warp *warp, u32 lane, u32 site, u32 strong) {
    u64 clock = warp->clocks->now[warp->index];
    if (clock > 0x7ffff) clock = 0;
    return 1ull << 63 | (warp->block->linear & 0xfffff) << 43 | (u64)warp->index << 38 | (u64)lane << 33 | clock << 14 |
           (u64)(site < 4095 ? site : 4095) << 2 | strong;
}

static u32 block_of(u64 stamp) { return (u32)(stamp >> 43 & 0xfffff); }
static u32 warp_of(u64 stamp) { return (u32)(stamp >> 38 & 31); }
static u32 lane_of(u64 stamp) { return (u32)(stamp >> 33 & 31); }
static u32 clock_of(u64 stamp) { return (u32)(stamp >> 14 & 0x7ffff); }
static u32 site_of(u64 stamp) { return (u32)(stamp >> 2 & 4095); }
static bool same_thread(u64 a, u64 b) { return !((a ^ b) >> 33 & 0x3fffffff); }

static bool ordered(Warp *warp, u32 lane, u64 before) {
    u32 block = block_of(before), other = warp_of(before), clock = clock_of(before);
    const Clocks *mine = warp->clocks;
    if (block == (warp->block->linear & 0xfffff)) {
        if (other == warp->index) return lane_of(before) == lane || clock < mine->now[other];
        return clock <= mine->now[other];
    }
    const u32 *known = clocks_of(mine->know, block);
    return known && clock <= known[other];
}

static void report(Warp *warp, u32 kind, u32 lane, u32 site, u64 before, u64 address, u64 width) {
    Finding *found = finding(warp, kind, lane, site);
    if (!found) return;
    found->address = address, found->width = (u32)width;
    found->other_site = before ? site_of(before) : ~0u;
    found->other_block = block_of(before), found->other_thread = warp_of(before) * LANES + lane_of(before);
}

static Var *var_at(Watch *watch, u64 key, bool make) {
    if (2 * watch->var_count >= watch->var_room) {
        u64 room = watch->var_room ? 2 * watch->var_room : 1024;
        Var *fresh = (Var *)calloc(room, sizeof(Var));
        if (!fresh) abort();
        for (u64 i = 0; i < watch->var_room; i++)
            if (watch->vars[i].know) {
                u64 h = watch->vars[i].key * 0x9E3779B97F4A7C15ull >> 20 & (room - 1);
                while (fresh[h].know) h = (h + 1) & (room - 1);
                fresh[h] = watch->vars[i];
            }
        free(watch->vars);
        watch->vars = fresh, watch->var_room = room;
    }
    u64 h = key * 0x9E3779B97F4A7C15ull >> 20 & (watch->var_room - 1);
    while (watch->vars[h].know && watch->vars[h].key != key) h = (h + 1) & (watch->var_room - 1);
    if (!watch->vars[h].know && !make) return nullptr;
    return &watch->vars[h];
}

static u64 key_of(Warp *warp, u64 address) {
    if (address >> SLOT_SHIFT != SLOT_SHARED) return address;
    u64 offset = address & ((1ull << SLOT_SHIFT) - 1);
    Block *owner = shared_owner(warp, offset);
    return offset | (u64)SLOT_SHARED << SLOT_SHIFT | (owner ? owner->linear + 1 : 0) << 40;
}

static void remember(Warp *warp, u32 scope) {
    Clocks *c = warp->clocks;
    memcpy(c->fenced[scope], c->now, sizeof c->now);
    c->fenced_know[scope] = c->know, c->ready[scope] = nullptr, c->has_fence[scope] = 1;
}

static void publish(Warp *warp, u64 address, u32 scope) {
    Clocks *c = warp->clocks;
    Watch *watch = warp->run->watch;
    if (!c->has_fence[scope]) return;
    if (!c->ready[scope]) {
        Know *own = new_know(watch, 1);
        own->block[0] = (u32)(warp->block->linear & 0xfffff);
        own->clock[0] = (u32 *)take(watch, 4 * LANES);
        memcpy(own->clock[0], c->fenced[scope], 4 * LANES);
        c->ready[scope] = join(watch, c->fenced_know[scope], own);
    }
    u64 key = key_of(warp, address);
    Var *var = var_at(watch, key, true);
    if (!var->know) watch->var_count++, var->key = key;
    var->know = join(watch, var->know, c->ready[scope]);
}

static void take_over(Warp *warp, Know *know) {
    Clocks *c = warp->clocks;
    const u32 *own = clocks_of(know, (u32)(warp->block->linear & 0xfffff));
    for (u32 i = 0; own && i < LANES; i++)
        if (i != warp->index && own[i] > c->now[i]) c->now[i] = own[i];
    c->know = join(warp->run->watch, c->know, know);
}

// An atomic or volatile access at an address: takes over and publishes what its order says.
void san_sync(Warp *warp, u64 address, bool reads, bool writes, u32 order) {
    u32 scope = address >> SLOT_SHIFT == SLOT_SHARED ? CTA : GPU;
    if (reads) {
        Var *var = var_at(warp->run->watch, key_of(warp, address), false);
        if (var) take_over(warp, var->know);
    }
    if (!writes) return;
    if (order & RELEASE) remember(warp, CTA), remember(warp, GPU);
    publish(warp, address, scope);
    if (order & RELEASE) warp->clocks->now[warp->index]++;
}

struct Place {
    Cell *cells;
    u8 *defined, *host;
    u64 offset;
};

static bool place_of(Warp *warp, u64 address, u32 lane, Place &out) {
    u64 slot = address >> SLOT_SHIFT, offset = address & ((1ull << SLOT_SHIFT) - 1);
    Run *run = warp->run;
    out.offset = offset;
    if (slot == SLOT_SHARED) {
        Block *owner = shared_owner(warp, out.offset);
        if (!owner) return false;
        out.cells = owner->shadow->cells, out.defined = owner->shadow->defined, out.host = owner->shared;
        return true;
    }
    if (slot == SLOT_LOCAL) {
        out.cells = nullptr, out.defined = warp->local_defined + lane * run->local_bytes;
        out.host = warp->local + lane * run->local_bytes;
        return true;
    }
    if (slot < SLOT_FIRST || slot >= SLOTS || !run->slots[slot].defined) return false;
    if (!run->watch->cells[slot]) {
        run->watch->cells[slot] = (Cell *)calloc(run->slots[slot].nbytes + 1, sizeof(Cell));
        if (!run->watch->cells[slot]) abort();
    }
    out.cells = run->watch->cells[slot], out.defined = run->slots[slot].defined, out.host = run->slots[slot].host;
    return true;
}

void san_read(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong) {
    Place at;
    if (!place_of(warp, address, lane, at)) return;
    u64 me = stamp_of(warp, lane, site, strong);
    for (u64 b = at.offset; b < at.offset + width; b++) {
        if (at.defined[b] != DEFINED) {
            report(warp, at.defined[b] == ABSENT ? UNINITIALISED : MISSING_WAIT, lane, site, 0, address, width);
            at.defined[b] = DEFINED;  // said once
        }
        if (!at.cells) continue;
        Cell &cell = at.cells[b];
        if (cell.write && !(strong & cell.write & 1) && !ordered(warp, lane, cell.write))
            report(warp, RACE_READ, lane, site, cell.write, address, width), cell.write = 0;
        if (cell.read && !same_thread(cell.read, me)) cell.other = cell.read;
        cell.read = me;
    }
}

// `value`: the bytes to be written, or null where what is there does not tell (atomics).
void san_write(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong, const u8 *value) {
    Place at;
    if (!place_of(warp, address, lane, at)) return;
    u64 me = stamp_of(warp, lane, site, strong);
    for (u64 k = 0; k < width; k++) {
        u64 b = at.offset + k;
        bool same = value && at.host[b] == value[k] && at.defined[b];
        if (at.defined[b] == ARRIVING) report(warp, MISSING_WAIT, lane, site, 0, address, width);
        at.defined[b] = DEFINED;
        if (!at.cells) continue;
        Cell &cell = at.cells[b];
        if (!same) {
            if (cell.write && !(strong & cell.write & 1) && !ordered(warp, lane, cell.write))
                report(warp, RACE_WRITE, lane, site, cell.write, address, width);
            u64 reader = cell.read && !(strong & cell.read & 1) && !ordered(warp, lane, cell.read)      ? cell.read
                         : cell.other && !(strong & cell.other & 1) && !ordered(warp, lane, cell.other) ? cell.other
                                                                                                        : 0;
            if (reader) report(warp, RACE_READ, lane, site, reader, address, width);
        }
        cell.write = me;
        if (!same) cell.read = cell.other = 0;
    }
}

// The target of an asynchronous copy: nobody may read it before it has arrived.
void san_arriving(Warp *warp, u64 address, u32 width, u32 lane, u32 site) {
    Place at;
    san_write(warp, address, width, lane, site, 0, nullptr);
    if (!place_of(warp, address, lane, at)) return;
    memset(at.defined + at.offset, ARRIVING, width);
}

void san_arrived(Warp *warp, u64 address, u32 width, u32 lane, u32 site) {
    Place at;
    if (!place_of(warp, address, lane, at)) return;
    u64 me = stamp_of(warp, lane, site, 0);
    for (u64 b = at.offset; b < at.offset + width; b++) {
        at.defined[b] = DEFINED;
        if (at.cells) at.cells[b].write = me;
    }
}

// A request of a load or store. values: [element][lane] of `size` bytes, before it is done.
void san_request(Warp *warp, const u64 *address, u32 mask, u32 size, u32 count, u32 site, const void *values) {
    u32 order = warp->clocks->order, strong = order & STRONG;
    warp->clocks->order = 0;
    for (u32 m = mask; m; m &= m - 1) {
        u32 i = first_lane(m);
        if (!values) {
            if (order) san_sync(warp, address[i], true, false, order);
            san_read(warp, address[i], size * count, i, site, strong);
            continue;
        }
        u8 bytes[64];
        for (u32 k = 0; k < count; k++) memcpy(bytes + k * size, (const u8 *)values + ((u64)k * LANES + i) * size, size);
        // Lanes of one instruction that write to one place: the last one wins on hardware or not. Equal bytes are fine.
        for (u32 j = 0; j < i; j++)
            if ((mask >> j & 1) && address[j] == address[i] && !strong && address[i] >> SLOT_SHIFT != SLOT_LOCAL) {
                bool differ = false;
                for (u32 k = 0; k < count; k++)
                    differ |= memcmp(bytes + k * size, (const u8 *)values + ((u64)k * LANES + j) * size, size) != 0;
                if (differ) report(warp, RACE_WRITE, i, site, stamp_of(warp, j, site, 0), address[i], size * count);
                break;
            }
        san_write_lane(warp, address[i], size * count, i, site, strong, bytes, mask);
        if (order) san_sync(warp, address[i], false, true, order);
    }
}

// As san_write, but what lanes of the same instruction wrote is no conflict.
void san_write_lane(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong, const u8 *value, u32) {
    Place at;
    if (!place_of(warp, address, lane, at)) return;
    if (at.cells)
        for (u64 b = at.offset; b < at.offset + width; b++) {
            u64 last = at.cells[b].write;
            if (last && block_of(last) == (warp->block->linear & 0xfffff) && warp_of(last) == warp->index &&
                site_of(last) == site && clock_of(last) == warp->clocks->now[warp->index] && lane_of(last) != lane)
                at.cells[b].write = 0;
        }
    san_write(warp, address, width, lane, site, strong, value);
}

// An atomic of one lane, before it is done.
void san_atomic(Warp *warp, u64 address, u32 width, u32 lane, u32 site, bool fetches) {
    u32 order = warp->clocks->order;
    san_sync(warp, address, fetches || order & ACQUIRE, true, order);
    Place at;
    if (!place_of(warp, address, lane, at)) return;
    san_read(warp, address, width, lane, site, STRONG);
    san_write(warp, address, width, lane, site, STRONG, nullptr);
}

// The barrier of a cluster: arriving publishes, leaving takes over.
void san_cluster(Warp *warp, bool leaving) {
    u64 address = 5ull << SLOT_SHIFT | warp->block->cluster->number << 8;
    san_sync(warp, address, leaving, !leaving, RELEASE);
}

void san_arrive(Warp *warp, u32 id) {
    Meeting &meeting = warp->block->shadow->meeting[id];
    Clocks *c = warp->clocks;
    for (u32 i = 0; i < LANES; i++) meeting.clock[i] = c->now[i] > meeting.clock[i] ? c->now[i] : meeting.clock[i];
    meeting.know = join(warp->run->watch, meeting.know, c->know);
    // What a thread has fenced before a barrier may be published by another one after it.
    for (u32 scope = 0; scope < 2; scope++) {
        if (!c->has_fence[scope]) continue;
        u32 *fenced = meeting.fenced[scope];
        for (u32 i = 0; i < LANES; i++) fenced[i] = c->fenced[scope][i] > fenced[i] ? c->fenced[scope][i] : fenced[i];
        meeting.fenced_know[scope] = join(warp->run->watch, meeting.fenced_know[scope], c->fenced_know[scope]);
        meeting.has_fence[scope] = 1;
    }
    c->now[warp->index]++;
}

void san_leave(Warp *warp, u32 id) {
    Meeting &meeting = warp->block->shadow->meeting[id];
    Clocks *c = warp->clocks;
    for (u32 i = 0; i < LANES; i++)
        if (i != warp->index && meeting.clock[i] > c->now[i]) c->now[i] = meeting.clock[i];
    c->know = join(warp->run->watch, c->know, meeting.know);
    for (u32 scope = 0; scope < 2; scope++) {
        if (!meeting.has_fence[scope]) continue;
        u32 *fenced = c->fenced[scope];
        for (u32 i = 0; i < LANES; i++) fenced[i] = meeting.fenced[scope][i] > fenced[i] ? meeting.fenced[scope][i] : fenced[i];
        c->fenced_know[scope] = join(warp->run->watch, c->fenced_know[scope], meeting.fenced_know[scope]);
        c->has_fence[scope] = 1, c->ready[scope] = nullptr;
    }
}

void san_met(Block *block, u32 id) { memset(&block->shadow->meeting[id], 0, sizeof(Meeting)); }

void san_new_block(Run *run, Block *block) {
    block->shadow = (Shadow *)calloc(1, sizeof(Shadow));
    block->shadow->cells = (Cell *)calloc(run->shared_bytes + 1, sizeof(Cell));
    block->shadow->defined = (u8 *)calloc(run->shared_bytes + 1, 1);
    for (u32 i = 0; i < block->warp_count; i++) {
        block->warps[i]->clocks = (Clocks *)calloc(1, sizeof(Clocks));
        block->warps[i]->local_defined = (u8 *)calloc(run->local_bytes * LANES + 1, 1);
    }
}

void san_start_block(Run *run, Block *block) {
    memset(block->shadow->cells, 0, run->shared_bytes * sizeof(Cell));
    memset(block->shadow->defined, 0, run->shared_bytes);
    memset(block->shadow->meeting, 0, sizeof block->shadow->meeting);
    for (u32 i = 0; i < block->warp_count; i++) {
        memset(block->warps[i]->clocks, 0, sizeof(Clocks));
        block->warps[i]->clocks->now[i] = 1;
        memset(block->warps[i]->local_defined, 0, run->local_bytes * LANES);
    }
}

void san_free_block(Block *block) {
    for (u32 i = 0; i < block->warp_count; i++) free(block->warps[i]->clocks), free(block->warps[i]->local_defined);
    free(block->shadow->cells), free(block->shadow->defined), free(block->shadow);
}

void san_start(Run *run) {
    run->watch = (Watch *)calloc(1, sizeof(Watch));
    if (!run->watch) abort();
}

void san_end(Run *run) {
    for (u32 i = 0; i < SLOTS; i++) free(run->watch->cells[i]);
    for (u32 i = 0; i < run->watch->chunk_count; i++) free(run->watch->chunks[i]);
    free(run->watch->vars), free(run->watch);
    run->watch = nullptr;
}

extern "C" {
// The next access has this order: 1 strong, 2 acquire, 4 release.
void kb_order(Warp *warp, u32 order) {
    if (warp->clocks) warp->clocks->order = order;
}

void kb_fence(Warp *warp, u32 wide) {
    if (!warp->clocks) return;
    remember(warp, CTA);
    if (wide) remember(warp, GPU);
    warp->clocks->now[warp->index]++;
}

void kb_warp_sync(Warp *warp) {
    if (warp->clocks) warp->clocks->now[warp->index]++;
}
}
