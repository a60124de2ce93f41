// State shared by the generated code and the runtime. Offsets of Warp are known to layout.py.
//
// Addresses that candidate code sees are virtual: bits 36 and up choose a slot, the rest is an
// offset into it. No access reaches host memory except through resolve(), which checks slot and offset.
#pragma once
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

enum { LANES = 32, SLOT_SHIFT = 36, SLOT_SHARED = 1, SLOT_LOCAL = 2, SLOT_PARAM = 3, SLOT_FIRST = 16, SLOTS = 4096 };
enum { REUSES = 9, HOT_WORDS = 1 << 16 };
enum { BARRIERS = 17 };  // 16 of the block, and the cluster's at 16
enum FaultKind { OUT_OF_BOUNDS = 1, MISALIGNED, TRAP, BUDGET, DEADLOCK, BAD_BRANCH, UNSUPPORTED, ASSERTED };
enum FindingKind { DIVERGENT_BARRIER = 1, ABSENT_LANE, MISSING_WAIT, UNINITIALISED, RACE_READ, RACE_WRITE, MIXED_BARRIER };

struct Slot {
    u8 *host;
    u64 nbytes;
    u64 *read;     // bitmap of 32-byte sectors, or null
    u64 *written;
    u64 writable;
    u8 *defined;   // of each byte whether it was written, or null (the sanitizer's)
    u64 *stamps;   // who loaded each sector last: block number + 1, whether it was cold, that warp's count of loads; or null
};

struct Site {
    u64 requests, sectors, bytes;
    u64 conflicts;  // of atomics: lanes on a word that an earlier lane has; of global loads and stores: 128-byte lines
    u64 cold;       // of sampled runs: loads of what their block has not loaded before, or is loading just now
};

struct Fault {
    u32 kind, site, lane, warp, block[3], pad;
    u64 address, width;
};

struct Finding {
    u32 kind, site, block[3], thread;
    u64 count;
    u32 other_site, other_block, other_thread, width;  // of a race: the earlier access
    u64 address;
};

struct Block;
struct Warp;
struct Watch;
struct Cluster;
struct Shadow;
struct Clocks;
typedef u32 (*Kernel)(Warp *);

struct Pending {  // an asynchronous copy that has not been waited for
    u64 target;
    u8 data[16];
    u32 bytes, group, lane, pad;
};

struct Run {  // one launch
    Slot slots[SLOTS];
    Kernel kernel;
    u8 *params;
    u64 param_bytes;
    u64 *block_counts;  // per basic block: executions, active lanes
    Site *sites;
    u64 register_bytes, local_bytes;
    u32 grid[3], block[3], cluster[3];
    u32 shared_static, shared_bytes;
    u32 slots_used, zero_registers;
    u64 budget, used;
    u64 divergent_branches, barriers, max_warp;
    u64 *picks;
    u64 pick_count;
    Fault fault;
    Finding *findings;
    u32 finding_count, finding_room;
    char *text;
    u64 text_used, text_room;
    u64 lane_accesses;
    u64 *hot;            // table of atomically changed words and how often, of sampled runs; or null
    u64 hot_most;        // the most lanes that changed one word
    u64 first_sectors;   // sectors that a block loads for the first time
    u64 reuse[REUSES];   // loads of a sector again: by how many loads of a warp lie between,
    u64 between[REUSES]; // and the sum of these
    u64 slice;           // warp instructions before other warps get their turn (0: many)
    u64 rounds;          // turns of a block before the next ones start beside it (0: 64)
    u64 waves;           // not 0: blocks run side by side, this many started together, the last one first
    u64 sanitize;
    Watch *watch;        // the sanitizer's state, while it runs
    jmp_buf escape;
};

struct Block {
    Run *run;
    u8 *shared;
    Warp **warps;
    u32 index[3], warp_count, done, state;
    u32 arrived[BARRIERS], expected[BARRIERS];
    u32 red_count[BARRIERS], red_and[BARRIERS], red_or[BARRIERS];
    u32 barrier_site[BARRIERS];
    u64 linear;
    Shadow *shadow;
    Cluster *cluster;
};

struct Cluster {  // blocks that reach each other's shared memory: addresses hold a rank + 1 from bit 24 on
    Block *peers[16];
    u32 size, alive, arrived, phase, idle, pad;
    u64 number;
};

struct Warp {
    u8 *registers;         // 0
    u8 *params;            // 8
    Run *run;              // 16
    Block *block;          // 24
    u64 executed;          // 32: warp instructions so far
    u64 limit;             // 40: return at the next backward branch when executed is over it
    u32 mask, live;        // 48, 52: running lanes, lanes that have not exited
    u32 next_waiting;      // 56: lowest program counter of a lane that waits, or ~0
    u32 index;             // 60
    u32 pc[LANES];         // 64
    u32 at_barrier;        // 192: lanes parked at a barrier
    u32 barrier_result;    // 196
    u32 pad0[14];
    u32 tid[3][LANES];     // 256, 384, 512
    u32 ctaid[3], nctaid[3], ntid[3], pad1[7];  // 640, 652, 664
    u64 *block_counts;     // 704
    u8 *local;             // 712
    u32 shared_total;      // 720
    u32 clusterid[3], nclusterid[3], cluster_ctaid[3], cluster_nctaid[3], cluster_rank, cluster_size, pad2;  // 724
    u32 barrier_of[LANES];
    u64 result[LANES];
    Pending *pending;
    u32 pending_count, pending_room, group_now, group_done[LANES];
    u32 loads;  // requests to global memory so far
    u32 cluster_phase;  // of the cluster's barrier, when this warp arrived
    Clocks *clocks;     // the sanitizer's, or null
    u8 *local_defined;
};

struct Reached {  // where the lanes of a request go
    u8 *base;
    u64 offset[LANES];  // from base; inactive lanes repeat the first active one's
    u32 pattern;        // 1: lane i at i * width, 2: all equal, 3: each half-warp one of these, 0: see offset
    u8 *half[2];        // pattern 3: where each half starts,
    u32 step[2];        // and 1 if its lanes follow one another, 0 if they are equal
};

static inline u8 *lane_address(const Reached &at, u32 lane, u32 width) {
    if (at.pattern == 3) return at.half[lane >> 4] + (at.step[lane >> 4] ? (u64)(lane & 15) * width : 0);
    return at.base + (at.pattern == 1 ? (u64)lane * width : at.pattern == 2 ? 0 : at.offset[lane]);
}

void reach_global(Warp *warp, const u64 *address, u32 mask, u32 width, u32 site, bool write, bool counted, Reached &out);
void reach_shared(Warp *warp, const u32 *address, u32 mask, u32 width, u32 site, Reached &out);
void reach_generic(Warp *warp, const u64 *address, u32 mask, u32 width, u32 site, bool write, Reached &out);
u32 wavefronts(const u32 *offset, u32 mask, u32 width);
u32 pack_float(double value, u32 ebits, u32 mbits, u32 mode, bool satfinite);
double unpack_float(u32 bits, u32 ebits, u32 mbits);
void complete(Warp *warp, u32 keep);
[[noreturn]] void fault(Warp *warp, u32 kind, u32 lane, u32 site, u64 address, u64 width);
Finding *finding(Warp *warp, u32 kind, u32 lane, u32 site);
// sanitize.cpp
void san_start(Run *run);
void san_end(Run *run);
void san_new_block(Run *run, Block *block);
void san_start_block(Run *run, Block *block);
void san_free_block(Block *block);
void san_arrive(Warp *warp, u32 id);
void san_leave(Warp *warp, u32 id);
void san_met(Block *block, u32 id);
void san_cluster(Warp *warp, bool leaving);
void san_request(Warp *warp, const u64 *address, u32 mask, u32 size, u32 count, u32 site, const void *values);
void san_read(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong);
void san_write(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong, const u8 *value);
void san_write_lane(Warp *warp, u64 address, u32 width, u32 lane, u32 site, u32 strong, const u8 *value, u32 mask);
void san_atomic(Warp *warp, u64 address, u32 width, u32 lane, u32 site, bool fetches);
void san_sync(Warp *warp, u64 address, bool reads, bool writes, u32 order);
void san_arriving(Warp *warp, u64 address, u32 width, u32 lane, u32 site);
void san_arrived(Warp *warp, u64 address, u32 width, u32 lane, u32 site);
u8 *reach(Warp *warp, u64 address, u64 width, u32 lane, u32 site, bool write);
Block *shared_owner(Warp *warp, u64 &offset);
static inline u32 first_lane(u32 mask) { return (u32)__builtin_ctz(mask); }
