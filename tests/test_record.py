"""Recording launch plans: many kinds of honest launchers, and hostile ones that must each get a status.

One program holds all launchers, picked by the scalar ``mode``, so that nvcc runs once.
"""

from __future__ import annotations

import shutil
import struct
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

SOURCE = (Path(__file__).parent / "record_modes.cu").read_text()


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
