// Runs the blocks of a launch: warps of a block in turn, blocks in order; lanes of a warp that are at
// different program counters run lowest first, so that they meet again at the join.
#include <stdlib.h>

#include "runtime.h"

enum { CLUSTER_BARRIER = 16 };
enum { RETURN_DONE = 0, RETURN_BARRIER = 1, RETURN_SLICE = 2 };
static const u32 IDLE_TURNS = 1 << 12;
static const u64 SLICE = 1 << 17;  // warp instructions before other warps get their turn

static_assert(offsetof(Warp, mask) == 48 && offsetof(Warp, pc) == 64 && offsetof(Warp, at_barrier) == 192, "layout");
static_assert(offsetof(Warp, tid) == 256 && offsetof(Warp, ctaid) == 640 && offsetof(Warp, block_counts) == 704, "layout");
static_assert(offsetof(Warp, shared_total) == 720, "layout");

void fault(Warp *warp, u32 kind, u32 lane, u32 site, u64 address, u64 width) {
    Run *run = warp->run;
    Fault &out = run->fault;
    out.kind = kind, out.site = site, out.lane = lane, out.warp = warp->index;
    memcpy(out.block, warp->ctaid, sizeof out.block);
    out.address = address, out.width = width;
    longjmp(run->escape, 1);
}

Finding *finding(Warp *warp, u32 kind, u32 lane, u32 site) {
    Run *run = warp->run;
    for (u32 i = 0; i < run->finding_count; i++)
        if (run->findings[i].kind == kind && run->findings[i].site == site) {
            run->findings[i].count++;
            return nullptr;
        }
    if (run->finding_count == run->finding_room) return nullptr;
    Finding &out = run->findings[run->finding_count++];
    out.kind = kind, out.site = site, out.thread = warp->index * LANES + lane, out.count = 1;
    memcpy(out.block, warp->ctaid, sizeof out.block);
    return &out;
}

// Chooses the lanes that run next: those at the lowest program counter. Returns it, or ~0 if none can run.
static u32 choose(Warp *warp) {
    u32 ready = warp->live & ~warp->at_barrier, lowest = ~0u, second = ~0u, mask = 0;
    for (u32 i = 0; i < LANES; i++) {
        u32 pc = (ready >> i & 1) ? warp->pc[i] : ~0u;
        lowest = pc < lowest ? pc : lowest;
    }
    if (lowest == ~0u) return ~0u;
    for (u32 i = 0; i < LANES; i++) {
        u32 pc = (ready >> i & 1) ? warp->pc[i] : ~0u;
        mask |= (u32)(pc == lowest) << i;
        u32 other = pc == lowest ? ~0u : pc;
        second = other < second ? other : second;
    }
    warp->mask = mask;
    warp->next_waiting = second;
    return lowest;
}

extern "C" {

u32 kb_enter(Warp *warp) { return choose(warp); }

static void park(Warp *warp, u32 mask, u32 pc) {
    for (u32 i = 0; i < LANES; i++) warp->pc[i] = (mask >> i & 1) ? pc : warp->pc[i];
}

// The running lanes want to go on at pc, but others wait at or before it.
u32 kb_park(Warp *warp, u32 pc) {
    park(warp, warp->mask, pc);
    return choose(warp);
}

// The running lanes separate: those in taken go to pc, the rest to other.
u32 kb_split(Warp *warp, u32 taken, u32 pc, u32 other) {
    warp->run->divergent_branches++;
    park(warp, taken, pc);
    park(warp, warp->mask & ~taken, other);
    return choose(warp);
}

// Lanes leave the kernel.
u32 kb_exit(Warp *warp, u32 leaving, u32 pc) {
    park(warp, warp->mask & ~leaving, pc);
    warp->live &= ~leaving;
    return choose(warp);
}

// An indexed branch: index per lane into a table of program counters.
u32 kb_indexed(Warp *warp, const u32 *index, const u32 *table, u32 count, u32 site) {
    u32 mask = warp->mask, different = 0, first = index[first_lane(mask)];
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) {
            if (index[i] >= count) fault(warp, BAD_BRANCH, i, site, index[i], 0);
            warp->pc[i] = table[index[i]];
            different |= index[i] != first;
        }
    if (different) warp->run->divergent_branches++;
    return choose(warp);
}

// The running lanes arrive at barrier id and will go on at pc. kind: 0 wait, 1 arrive only, 2-4 popc/and/or; 16 is added
// where lanes of a warp may come one by one (barrier without .aligned).
u32 kb_barrier(Warp *warp, u32 pc, u32 id, u32 threads, u32 kind, u32 predicate, u32 site) {
    Block *block = warp->block;
    u32 mask = warp->mask, aligned = !(kind & 16);
    kind &= 15;
    if (id >= 16) fault(warp, BAD_BRANCH, first_lane(mask), site, id, 0);
    park(warp, mask, pc);
    if (kind != 1) {
        warp->at_barrier |= mask;
        for (u32 i = 0; i < LANES; i++)
            if (mask >> i & 1) warp->barrier_of[i] = id;
        // Lanes of one warp that wait at the same barrier at different places: undefined in CUDA.
        if (aligned && mask != warp->live) finding(warp, DIVERGENT_BARRIER, first_lane(mask), site);
    }
    // Warps that meet at different barriers of the source: undefined in CUDA, and works on hardware by chance.
    if (!block->arrived[id]) block->barrier_site[id] = site;
    if (aligned && !id && !threads && kind != 1 && block->barrier_site[id] != site) finding(warp, MIXED_BARRIER, first_lane(mask), site);
    if (warp->clocks) san_arrive(warp, id);
    block->expected[id] = threads;
    block->arrived[id] += (u32)__builtin_popcount(mask);
    block->red_count[id] += (u32)__builtin_popcount(predicate & mask);
    block->red_and[id] += (u32)((predicate & mask) != mask);
    block->red_or[id] += (u32)((predicate & mask) != 0);
    warp->run->barriers++;
    return choose(warp);
}

// The cluster's barrier: kind 0 arrive, 1 wait for the phase in which this warp arrived.
u32 kb_cluster(Warp *warp, u32 pc, u32 kind, u32 site) {
    Cluster *cluster = warp->block->cluster;
    u32 mask = warp->mask;
    park(warp, mask, pc);
    if (mask != warp->live) finding(warp, DIVERGENT_BARRIER, first_lane(mask), site);
    if (kind == 0) {
        cluster->arrived += (u32)__builtin_popcount(mask), warp->cluster_phase = cluster->phase;
        if (warp->clocks) san_cluster(warp, false);
        warp->run->barriers++;
    } else if (cluster->phase == warp->cluster_phase) {
        warp->at_barrier |= mask;
        for (u32 i = 0; i < LANES; i++)
            if (mask >> i & 1) warp->barrier_of[i] = CLUSTER_BARRIER;
        warp->block->barrier_site[CLUSTER_BARRIER] = site;
    } else if (warp->clocks) {
        san_cluster(warp, true);
    }
    return choose(warp);
}

// At the end of a slice: the running lanes stop at pc.
void kb_slice(Warp *warp, u32 pc) { park(warp, warp->mask, pc); }
}

static Warp *new_warp(Run *run, Block *block, u32 index) {
    Warp *warp = (Warp *)aligned_alloc(64, (sizeof(Warp) + 63) / 64 * 64);
    memset(warp, 0, sizeof *warp);
    warp->registers = (u8 *)aligned_alloc(64, (run->register_bytes + 127) / 64 * 64);
    warp->local = run->local_bytes ? (u8 *)aligned_alloc(64, (run->local_bytes * LANES + 127) / 64 * 64) : nullptr;
    warp->run = run, warp->block = block, warp->index = index, warp->params = run->params;
    warp->block_counts = run->block_counts;
    return warp;
}

static Block *new_block(Run *run) {
    Block *block = (Block *)calloc(1, sizeof(Block));
    u32 threads = run->block[0] * run->block[1] * run->block[2];
    block->run = run;
    block->warp_count = (threads + LANES - 1) / LANES;
    block->shared = (u8 *)aligned_alloc(64, ((u64)run->shared_bytes + 127) / 64 * 64);
    block->warps = (Warp **)calloc(block->warp_count, sizeof(Warp *));
    for (u32 i = 0; i < block->warp_count; i++) block->warps[i] = new_warp(run, block, i);
    if (run->sanitize) san_new_block(run, block);
    return block;
}

static void free_block(Block *block) {
    if (block->shadow) san_free_block(block);
    for (u32 i = 0; i < block->warp_count; i++) {
        free(block->warps[i]->registers);
        free(block->warps[i]->local);
        free(block->warps[i]->pending);
        free(block->warps[i]);
    }
    free(block->warps);
    free(block->shared);
    free(block);
}

static void start_warp(Run *run, Block *block, Warp *warp) {
    u32 threads = run->block[0] * run->block[1] * run->block[2], base = warp->index * LANES;
    warp->executed = 0, warp->at_barrier = 0, warp->barrier_result = 0;
    warp->live = threads - base >= LANES ? ~0u : (1u << (threads - base)) - 1;
    for (u32 i = 0; i < LANES; i++) {
        u32 thread = base + i;
        warp->pc[i] = 0;
        warp->tid[0][i] = thread % run->block[0];
        warp->tid[1][i] = thread / run->block[0] % run->block[1];
        warp->tid[2][i] = thread / run->block[0] / run->block[1];
        warp->group_done[i] = 0;
    }
    for (u32 d = 0; d < 3; d++) {
        warp->ctaid[d] = block->index[d], warp->nctaid[d] = run->grid[d], warp->ntid[d] = run->block[d];
        warp->clusterid[d] = block->index[d] / run->cluster[d], warp->nclusterid[d] = run->grid[d] / run->cluster[d];
        warp->cluster_ctaid[d] = block->index[d] % run->cluster[d], warp->cluster_nctaid[d] = run->cluster[d];
    }
    warp->cluster_rank = warp->cluster_ctaid[0] + run->cluster[0] * (warp->cluster_ctaid[1] + run->cluster[1] * warp->cluster_ctaid[2]);
    warp->cluster_size = run->cluster[0] * run->cluster[1] * run->cluster[2];
    warp->shared_total = run->shared_bytes;
    warp->pending_count = 0, warp->group_now = 0, warp->loads = 0;
    if (run->zero_registers) memset(warp->registers, 0, run->register_bytes);
    if (run->local_bytes) memset(warp->local, 0xff, run->local_bytes * LANES);
}

static void start_block(Run *run, Block *block, u64 linear) {
    block->linear = linear, block->done = 0, block->state = 0;
    block->index[0] = (u32)(linear % run->grid[0]);
    block->index[1] = (u32)(linear / run->grid[0] % run->grid[1]);
    block->index[2] = (u32)(linear / run->grid[0] / run->grid[1]);
    memset(block->arrived, 0, sizeof block->arrived);
    memset(block->red_count, 0, sizeof block->red_count);
    memset(block->red_and, 0, sizeof block->red_and);
    memset(block->red_or, 0, sizeof block->red_or);
    memset(block->shared, 0xff, run->shared_bytes);
    for (u32 i = 0; i < block->warp_count; i++) start_warp(run, block, block->warps[i]);
    if (block->shadow) san_start_block(run, block);
}

// Ends the phase of the cluster's barrier if all its threads have arrived, and lets this block's warps go.
static bool release_cluster(Block *block) {
    Cluster *cluster = block->cluster;
    bool any = false;
    if (cluster->arrived) {
        u32 live = 0;
        for (u32 r = 0; r < cluster->size; r++)
            for (u32 i = 0; cluster->peers[r] && i < cluster->peers[r]->warp_count; i++)
                live += (u32)__builtin_popcount(cluster->peers[r]->warps[i]->live);
        if (cluster->arrived >= live) cluster->arrived = 0, cluster->phase++, any = true;
    }
    for (u32 i = 0; i < block->warp_count; i++) {
        Warp *warp = block->warps[i];
        u32 here = 0;
        for (u32 lane = 0; warp->at_barrier && lane < LANES; lane++)
            here |= (u32)((warp->at_barrier >> lane & 1) && warp->barrier_of[lane] == CLUSTER_BARRIER) << lane;
        if (!here || warp->cluster_phase == cluster->phase) continue;
        warp->at_barrier &= ~here, any = true;
        if (warp->clocks) san_cluster(warp, true);
    }
    return any;
}

// Lets the barriers go whose threads have all arrived. Exited warps count as arrived. Returns whether any did.
static bool release(Run *run, Block *block) {
    u32 threads = run->block[0] * run->block[1] * run->block[2], exited = 0;
    bool any = false;
    for (u32 i = 0; i < block->warp_count; i++) {
        u32 base = i * LANES, all = threads - base >= LANES ? (u32)LANES : threads - base;
        exited += all - (u32)__builtin_popcount(block->warps[i]->live);
    }
    for (u32 id = 0; id < 16; id++) {
        if (!block->arrived[id]) continue;
        u32 want = block->expected[id] ? block->expected[id] : threads - exited;
        if (want > threads) want = threads;
        u32 rest = threads % LANES;  // a last, partly filled warp counts as a whole one
        if (block->expected[id] && want == block->expected[id] && rest && want + LANES - rest > threads) want = threads - exited;
        if (block->arrived[id] < want) continue;
        for (u32 i = 0; i < block->warp_count; i++) {
            Warp *warp = block->warps[i];
            u32 here = 0;
            for (u32 lane = 0; lane < LANES; lane++)
                if ((warp->at_barrier >> lane & 1) && warp->barrier_of[lane] == id) {
                    here |= 1u << lane;
                    warp->result[lane] = block->red_count[id] | (u64)(block->red_and[id] == 0) << 32 | (u64)(block->red_or[id] != 0) << 33;
                }
            warp->at_barrier &= ~here;
            if (here && warp->clocks) san_leave(warp, id);
        }
        if (block->shadow) san_met(block, id);
        block->arrived[id] = block->red_count[id] = block->red_and[id] = block->red_or[id] = 0;
        any = true;
    }
    return any;
}

// Too many instructions: says where the first lane that lives is (its basic block).
[[noreturn]] static void hang(Warp *warp) {
    u32 lane = warp->live ? first_lane(warp->live) : 0;
    fault(warp, BUDGET, lane, ~0u, warp->pc[lane], 0);
}

// Gives every warp of the block one turn. Returns 0 when all are done, 1 if some moved on, 2 if all wait
// for the cluster.
static u32 turn(Run *run, Block *block) {
    bool moved = false, alive = false;
    for (u32 i = 0; i < block->warp_count; i++) {
        Warp *warp = block->warps[i];
        if (!warp->live) continue;
        alive = true;
        if (!(warp->live & ~warp->at_barrier)) continue;
        u64 before = warp->executed;
        warp->limit = before + (run->slice ? run->slice : SLICE);
        u32 answer = run->kernel(warp);
        moved = true;
        run->used += warp->executed - before;
        if (run->used > run->budget) hang(warp);
        if (!warp->live && warp->executed > run->max_warp) run->max_warp = warp->executed;
        (void)answer;
    }
    if (!alive) return 0;
    if (release(run, block)) moved = true;
    if (release_cluster(block)) moved = true;
    if (moved) block->cluster->idle = 0;
    if (!moved && block->cluster->size > 1 && ++block->cluster->idle < IDLE_TURNS) return 2;  // others of the cluster may move
    if (!moved) {
        for (u32 i = 0; i < block->warp_count; i++)
            if (block->warps[i]->live) {
                Warp *warp = block->warps[i];
                u32 lane = first_lane(warp->live);
                fault(warp, DEADLOCK, lane, block->barrier_site[warp->barrier_of[lane]], 0, 0);
            }
    }
    return 1;
}

struct Active {  // blocks that have started, and finished ones to use again
    Block **active, **spare;
    u32 active_count, spare_count;
    u64 next;
};

static u32 cluster_size(const Run *run) { return run->cluster[0] * run->cluster[1] * run->cluster[2]; }

// Starts the blocks of the next cluster (one block, mostly).
static void begin(Run *run, Active *state) {
    u64 number = run->pick_count ? run->picks[state->next] : state->next, first[3], clusters[2];
    Cluster *cluster = (Cluster *)calloc(1, sizeof(Cluster));
    cluster->size = cluster->alive = cluster_size(run), cluster->number = number;
    for (u32 d = 0; d < 2; d++) clusters[d] = run->grid[d] / run->cluster[d];
    first[0] = number % clusters[0] * run->cluster[0], first[1] = number / clusters[0] % clusters[1] * run->cluster[1];
    first[2] = number / clusters[0] / clusters[1] * run->cluster[2];
    for (u32 r = 0; r < cluster->size; r++) {
        Block *block = state->spare_count ? state->spare[--state->spare_count] : new_block(run);
        state->active[state->active_count++] = block;
        u64 x = first[0] + r % run->cluster[0], y = first[1] + r / run->cluster[0] % run->cluster[1];
        u64 z = first[2] + r / run->cluster[0] / run->cluster[1];
        block->cluster = cluster, cluster->peers[r] = block;
        start_block(run, block, (z * run->grid[1] + y) * run->grid[0] + x);
    }
    state->next++;
}

static void finish(Active *state, u32 i) {
    Cluster *cluster = state->active[i]->cluster;
    for (u32 r = 0; r < cluster->size; r++)
        if (cluster->peers[r] == state->active[i]) cluster->peers[r] = nullptr;
    if (!--cluster->alive) free(cluster);
    state->active[i]->cluster = nullptr;
    state->spare[state->spare_count++] = state->active[i];
    for (u32 j = i + 1; j < state->active_count; j++) state->active[j - 1] = state->active[j];
    state->active_count--;
}

// Blocks side by side, as on a GPU: as many as there is room for have started, and the last of them has its turn first.
static void run_waves(Run *run, Active *state, u32 resident) {
    u64 count = (u64)run->grid[0] * run->grid[1] * run->grid[2] / cluster_size(run), room = run->waves < resident ? run->waves : resident;
    while (state->active_count || state->next < count) {
        while (state->next < count && state->active_count < room) begin(run, state);
        for (u32 i = state->active_count; i-- > 0;)
            if (!turn(run, state->active[i])) finish(state, i);
    }
}

static void run_blocks(Run *run, Active *state, u32 resident) {
    u64 total = (u64)run->grid[0] * run->grid[1] * run->grid[2] / cluster_size(run);
    u64 count = run->pick_count ? run->pick_count : total, rounds = run->rounds ? run->rounds : 64;
    while (state->active_count || state->next < count) {
        // A block runs until it is done or has been turned over often; then the next ones join it.
        if (state->next < count && state->active_count < resident) {
            begin(run, state);
        }
        for (u32 i = 0; i < state->active_count;) {
            u32 answer = 1;
            for (u64 round = 0; answer == 1 && round < rounds; round++) answer = turn(run, state->active[i]);
            if (answer) {
                i++;
                continue;
            }
            finish(state, i);
        }
    }
}

// Runs the picked blocks (all if pick_count is 0). A block that takes many turns lets the next ones start, up to
// `resident` of them, so that blocks may wait for one another. Returns 0, or 1 with run->fault filled.
extern "C" u32 kb_run(Run *run, u32 resident) {
    Active *state = (Active *)calloc(1, sizeof(Active));
    state->active = (Block **)calloc(resident + 16, sizeof(Block *));
    state->spare = (Block **)calloc(resident + 16, sizeof(Block *));
    if (run->sanitize) san_start(run);
    u32 failed = (u32)(setjmp(run->escape) != 0);
    if (!failed && run->waves && !run->pick_count)
        run_waves(run, state, resident);
    else if (!failed)
        run_blocks(run, state, resident);
    for (u32 i = 0; i < state->active_count; i++) free_block(state->active[i]);
    for (u32 i = 0; i < state->spare_count; i++) free_block(state->spare[i]);
    if (run->sanitize) san_end(run);
    free(state->active), free(state->spare), free(state);
    return failed;
}

extern "C" u64 kb_size_of_run() { return sizeof(Run); }
