"""Recording launch plans: many kinds of honest launchers, and hostile ones that must each get a status.

One program holds all launchers, picked by the scalar ``mode``, so that nvcc runs once.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from kb_env.evaluators import Prepared
from kb_env.plan import Copy, Fill, Launch, LaunchPlan, Upload, plan_digest
from kb_env.prepare import prepare
from kb_env.types import Argument, Case, Program, Status, Task

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

TASK = Task(
    name="modes",
    title="",
    description="",
    suite="test",
    family="test",
    source="",
    reference="",
    entry="launch",
    arguments=(
        Argument("x", "input", "float32", ("n",)),
        Argument("y", "output", "float32", ("n",)),
        Argument("n", "scalar", "int32"),
        Argument("mode", "scalar", "int32"),
        Argument("scale", "scalar", "float32", value="n / 3"),
    ),
    check=(),
    bench=(),
    dtype="float32",
    accumulate="float32",
    bytes_moved="8 * n",
    flops="n",
    workspace_bytes=1 << 28,
)

SOURCE = r"""
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <csignal>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>
#include <vector>

struct Pair { char tag; const float* from; short odd; float* to; int n; };
__constant__ float table[8];
__device__ float counter[4];

__global__ void plain(const float* x, float* y, int n, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * scale + table[i & 7] + counter[i & 3];
}
template <int N> __global__ void templated(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = N * x[0]; }
namespace { __global__ void hidden(const float* x, float* y) { y[0] = x[0]; } }
static __global__ void internal(const float* x, float* y) { y[1] = x[1]; }
__global__ void by_struct(Pair p) { if (p.n) p.to[0] = p.from[0] + p.tag + p.odd; }
__global__ void dynamic(float* y) { extern __shared__ float s[]; s[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = s[0]; }
__global__ void many(float** rows) { rows[threadIdx.x][0] = 1; }
__global__ void number(float* y, long long value) { y[0] = float(value); }
__global__ void together(float* y) { cooperative_groups::this_grid().sync(); y[0] = 1; }
__global__ void __launch_bounds__(128) bounded(float* y) { y[threadIdx.x] = 1; }

void honest(const float* x, float* y, int n, int mode, float scale) {
    int blocks = (n + 255) / 256;
    if (mode == 0) plain<<<blocks, 256>>>(x, y, n, scale);
    if (mode == 1) {
        float *a, *b;
        cudaMalloc(&a, n * 4);
        cudaMallocAsync((void**)&b, n * 8, 0);
        cudaMemsetAsync(b + 1, 7, n * 4, 0);
        plain<<<blocks, 256>>>(x, a, n, 1.0f);
        cudaMemcpy(b, a, n * 4, cudaMemcpyDeviceToDevice);
        plain<<<blocks, 256>>>(b, y, n, 1.0f);
        cudaFree(a);
        cudaFree(b);
    }
    if (mode == 2) {
        Pair p;
        p.tag = 1; p.from = x + 3; p.odd = 2; p.to = y; p.n = n;
        by_struct<<<1, 1>>>(p);
    }
    if (mode == 3) {
        cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000);
        dynamic<<<1, 32, 100000>>>(y);
    }
    if (mode == 4) { templated<3><<<1, 32>>>(x, y, n); hidden<<<1, 1>>>(x, y); internal<<<1, 1>>>(x, y); }
    if (mode == 5) {
        float values[8] = {1, 2, 3, 4, 5, 6, 7, float(n)};
        cudaMemcpyToSymbol(table, values, sizeof values);
        plain<<<blocks, 256>>>(x, y, n, scale);
    }
    if (mode == 6) {
        cudaStream_t s, t;
        cudaEvent_t e;
        cudaStreamCreate(&s); cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking); cudaEventCreate(&e);
        internal<<<1, 1, 0, s>>>(x, y);
        cudaEventRecord(e, s);
        cudaStreamWaitEvent(t, e, 0);
        hidden<<<1, 1, 0, t>>>(x, y);
        cudaStreamSynchronize(t);
        cudaDeviceSynchronize();
    }
    if (mode == 7) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute attribute[1];
        attribute[0].id = cudaLaunchAttributeClusterDimension;
        attribute[0].val.clusterDim.x = 2; attribute[0].val.clusterDim.y = 1; attribute[0].val.clusterDim.z = 1;
        config.gridDim = 4; config.blockDim = 128; config.attrs = attribute; config.numAttrs = 1;
        cudaLaunchKernelEx(&config, plain, x, y, n, scale);
    }
    if (mode == 8) {
        int per = 0;
        cudaDeviceProp prop;
        cudaGetDeviceProperties(&prop, 0);
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, together, 256, 0);
        void* arguments[] = {&y};
        cudaLaunchCooperativeKernel((void*)together, dim3(per * prop.multiProcessorCount), dim3(256), arguments, 0, 0);
    }
    if (mode == 9) {
        void* address;
        cudaGetSymbolAddress(&address, counter);
        cudaMemset(address, 0, sizeof(float) * 4);
        number<<<1, 1>>>((float*)address + 1, 5);
        plain<<<blocks, 256>>>(x, y + n / 2, n / 2, scale);
    }
    if (mode == 10) {
        int grid, block;
        cudaOccupancyMaxPotentialBlockSize(&grid, &block, plain, 0, 0);
        plain<<<grid, block>>>(x, y, n, scale);
    }
    if (mode == 11) {  // tries a configuration, sees the error, takes another
        plain<<<blocks, 2048>>>(x, y, n, scale);
        if (cudaGetLastError() != cudaSuccess) plain<<<blocks, 256>>>(x, y, n, scale);
    }
    if (mode == 12) {  // a table of device pointers
        float* rows[3] = {y, y + 8, y + 16};
        float** device;
        cudaMalloc(&device, sizeof rows);
        cudaMemcpy(device, rows, sizeof rows, cudaMemcpyHostToDevice);
        many<<<1, 3>>>(device);
    }
    if (mode == 13) for (int i = 0; i < 300; i++) { float* w; cudaMalloc(&w, 1 << 20); internal<<<1, 1>>>(x, w); cudaFree(w); }
}

__attribute__((noinline)) int deep(int n) { volatile char room[1 << 16]; room[n & 7] = 1; return deep(n + 1) + room[n & 15]; }
void hostile(const float* x, float* y, int n, int mode) {
    if (mode == 20) exit(3);
    if (mode == 21) abort();
    if (mode == 22) for (volatile int i = 0;; i++) {}
    if (mode == 23) for (;;) if (fork() < 0) usleep(100);
    if (mode == 24) { for (;;) { char* p = (char*)malloc(1 << 26); if (!p) abort(); memset(p, 1, 1 << 26); } }
    if (mode == 25) printf("%f", y[0] = x[0]);
    if (mode == 26) { float v; cudaMemcpy(&v, x, 4, cudaMemcpyDeviceToHost); }
    if (mode == 27) number<<<1, 1>>>(y, (long long)(y - x));
    if (mode == 28) { FILE* f = fopen("/dev/urandom", "r"); int v = fgetc(f) + 256 * fgetc(f); number<<<1, 1>>>(y, v); }
    if (mode == 29) { char junk[4096]; memset(junk, 0xff, sizeof junk); for (int fd = 3; fd < 64; fd++) if (write(fd, junk, sizeof junk) < 0) continue; number<<<1, 1>>>(y, 1); }
    if (mode == 30) throw std::runtime_error("no");
    if (mode == 32) { void* p; cudaMalloc(&p, 1ull << 40); number<<<1, 1>>>(y, p != nullptr); }
    if (mode == 33) plain<<<1, 2048>>>(x, y, n, 1.0f);
    if (mode == 34) dynamic<<<1, 32, 100000>>>(y);
    if (mode == 35) bounded<<<1, 256>>>(y);
    if (mode == 36) for (;;) puts("a line of output that nobody reads, again and again and again");
    if (mode == 37) { cudaMemset(y, 0, 4 * (size_t)n + 1); number<<<1, 1>>>(y, 1); }
    if (mode == 38) { if (fork() == 0) { setsid(); if (fork() == 0) { setsid(); execlp("sleep", "sleep", "7177.25", (char*)0); } _exit(0); } usleep(20000); number<<<1, 1>>>(y, 1); }
    if (mode == 39) deep(mode);
    if (mode == 40) { kill(getppid(), SIGKILL); pause(); }
    if (mode == 41) { kill(-1, SIGKILL); pause(); }
    if (mode == 42) raise(SIGSTOP);
    if (mode == 43) { int id = open("/etc/passwd", O_RDONLY), env = open("/proc/1/environ", O_RDONLY); number<<<1, 1>>>(y, 10 * (id >= 0) + (env >= 0)); }
    if (mode == 44) { float* p; cudaMalloc(&p, 64); cudaFree(p); for (int i = 0; i < 100000; i++) number<<<1, 1>>>(y, i); }
    if (mode == 45) { cudaStream_t s = (cudaStream_t)0x1230; number<<<1, 1, 0, s>>>(y, 1); }
    if (mode == 46) number<<<1, 1>>>(y, (long long)time(nullptr));
    if (mode == 47) { std::vector<char> big(100 << 20); cudaMemcpy(y, big.data(), 4, cudaMemcpyHostToDevice); cudaMemcpyToSymbol(table, big.data(), 32); number<<<1, 1>>>(y, 1); }
}

void launch(const float* x, float* y, int n, int mode, float scale) {
    if (mode < 20) honest(x, y, n, mode, scale);
    else hostile(x, y, n, mode);
}
"""


@pytest.fixture(scope="module")
def run(store: Path):  # type: ignore[no-untyped-def]
    def once(mode: int, n: int = 1000) -> Prepared:
        case = Case("check0", {"n": n, "mode": mode})
        return prepare(TASK, Program("modes", SOURCE), "sm_90a", store, (case,))

    return once


def plan_of(prepared: Prepared) -> LaunchPlan:
    assert prepared.fault is None, prepared.fault
    assert prepared.key is not None
    return prepared.plans["check0"]


def test_one_launch(run) -> None:
    plan = plan_of(run(0))
    (launch,) = plan.launches
    assert (launch.grid, launch.block, launch.shared_bytes) == ((4, 1, 1), (256, 1, 1), 0)
    assert [b.name for b in plan.buffers if b.kind == "argument"] == ["x", "y"]
    assert {(b.name, b.nbytes) for b in plan.buffers if b.kind == "symbol"} == {
        ("table", 32),
        ("counter", 16),
    }
    assert [(p.parameter, p.buffer, p.addend) for p in launch.pointers] == [(0, 0, 0), (1, 1, 0)]
    import struct

    assert struct.unpack("<i", launch.parameters[2]) == (1000,)
    assert struct.unpack("<f", launch.parameters[3])[0] == pytest.approx(1000 / 3)


def test_workspaces_fills_and_copies(run) -> None:
    plan = plan_of(run(1))
    work = [i for i, b in enumerate(plan.buffers) if b.kind == "workspace"]
    assert [plan.buffers[i].nbytes for i in work] == [4000, 8000]
    kinds = [type(op) for op in plan.operations]
    assert kinds == [Fill, Launch, Copy, Launch]
    fill, first, copy, second = plan.operations
    assert isinstance(fill, Fill) and (fill.buffer, fill.offset, fill.byte, fill.nbytes) == (
        work[1],
        4,
        7,
        4000,
    )
    assert isinstance(copy, Copy) and (copy.target, copy.source, copy.nbytes) == (work[1], work[0], 4000)
    assert isinstance(first, Launch) and first.pointers[1].buffer == work[0]
    assert isinstance(second, Launch) and second.pointers[0].buffer == work[1]


def test_pointers_inside_a_struct(run) -> None:
    (launch,) = plan_of(run(2)).launches
    assert [(p.parameter, p.offset, p.buffer, p.addend) for p in launch.pointers] == [
        (0, 8, 0, 12),
        (0, 24, 1, 0),
    ]
    (data,) = launch.parameters
    assert len(data) == 40 and data[8:16] == bytes(8) and data[24:32] == bytes(8)
    assert data[1:8] == bytes(7)  # padding is nothing


def test_dynamic_shared_memory(run) -> None:
    plan = plan_of(run(3))
    assert plan.launches[0].shared_bytes == 100000
    assert [(a.name, a.value) for a in plan.attributes] == [("max_dynamic_shared", 100000)]


def test_templates_and_internal_kernels(run) -> None:
    prepared = run(4)
    names = [launch.kernel for launch in plan_of(prepared).launches]
    assert len(set(names)) == 3
    assert all(f".entry {name}(" in prepared.ptx for name in names)
    assert all(name.encode() in prepared.image for name in names)


def test_constant_upload(run) -> None:
    plan = plan_of(run(5))
    upload = plan.operations[0]
    assert isinstance(upload, Upload) and plan.buffers[upload.target].name == "table"
    assert len(upload.data) == 32 and upload.data[:4] == b"\0\0\x80\x3f"


def test_streams_and_events_keep_issue_order(run) -> None:
    assert [launch.stream for launch in plan_of(run(6)).launches] == [1, 2]


def test_clusters(run) -> None:
    assert plan_of(run(7)).launches[0].cluster == (2, 1, 1)


def test_cooperative_launch_by_occupancy(run) -> None:
    (launch,) = plan_of(run(8)).launches
    assert launch.cooperative and launch.grid[0] == 8 * 132


def test_symbols_and_interior_pointers(run) -> None:
    plan = plan_of(run(9))
    fill, first, second = plan.operations
    assert isinstance(fill, Fill) and plan.buffers[fill.buffer].name == "counter"
    assert isinstance(first, Launch) and first.pointers[0].addend == 4
    assert isinstance(second, Launch) and second.pointers[1].addend == 2000


def test_occupancy_queries(run) -> None:
    (launch,) = plan_of(run(10)).launches
    assert launch.block[0] * (launch.grid[0] // 132) == 2048


def test_a_failed_launch_that_was_noticed_is_no_fault(run) -> None:
    assert [launch.block for launch in plan_of(run(11)).launches] == [(256, 1, 1)]


def test_freed_workspaces_are_handed_out_again(run) -> None:
    plan = plan_of(run(13))
    assert len(plan.launches) == 300
    assert plan.workspace_bytes == 1 << 20


def test_plan_follows_the_sizes(run) -> None:
    assert plan_of(run(0, 5000)).launches[0].grid == (20, 1, 1)
    assert plan_digest(plan_of(run(0, 5000))) != plan_digest(plan_of(run(0)))


HOSTILE = [
    (20, Status.CRASHED, "exit(3)"),
    (21, Status.CRASHED, "SIGABRT"),
    (24, Status.CRASHED, "SIG"),
    (25, Status.CRASHED, "SIGSEGV"),
    (26, Status.REFUSED, "cudaMemcpy (device to host)"),
    (27, Status.REFUSED, "depends on"),
    (28, Status.REFUSED, "depends on"),
    (30, Status.CRASHED, "SIGABRT"),
    (31, Status.REFUSED, "launched no kernel"),
    (32, Status.REFUSED, "workspace"),
    (33, Status.CRASHED, "block (2048, 1, 1)"),
    (34, Status.CRASHED, "cudaFuncSetAttribute"),
    (35, Status.CRASHED, "128 threads"),
    (37, Status.REFUSED, "leave buffer y"),
    (39, Status.CRASHED, "SIGSEGV"),
    (40, Status.CRASHED, ""),
    (41, Status.CRASHED, ""),
    (44, Status.REFUSED, "65536 operations"),
    (45, Status.REFUSED, "stream"),
    (46, Status.REFUSED, "depends on"),
]


@pytest.mark.parametrize(("mode", "status", "words"), HOSTILE)
def test_hostile_launchers_get_a_status(run, mode: int, status: Status, words: str) -> None:
    prepared = run(mode)
    assert prepared.fault is not None
    assert (prepared.fault.status, words in prepared.fault.message) == (status, True), prepared.fault
    assert prepared.key is None and not prepared.plans


def test_a_forged_record_reaches_nothing(run) -> None:
    assert len(plan_of(run(29)).launches) == 1


def test_files_and_processes_of_the_machine_are_out_of_sight(run) -> None:
    import struct

    (launch,) = plan_of(run(43)).launches
    assert struct.unpack("<q", launch.parameters[1]) == (0,)


def test_large_host_memory_is_fine(run) -> None:
    assert [type(op) for op in plan_of(run(47)).operations] == [Upload, Upload, Launch]


@pytest.mark.parametrize("mode", [22, 23, 36, 42])
def test_launchers_that_never_end_are_stopped(run, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_env.record.RECORD_SECONDS", 1.0)
    started = time.monotonic()
    prepared = run(mode)
    assert prepared.fault is not None and prepared.fault.status is Status.TIMED_OUT
    assert time.monotonic() - started < 8


def test_nothing_is_left_running(run) -> None:
    assert len(plan_of(run(38)).launches) == 1
    commands = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not [c for c in commands if b"7177.25" in c]
