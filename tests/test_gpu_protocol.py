"""Frames, worker processes, arena layout, and the oracle's verdicts over the host mirror: no GPU needed."""

from __future__ import annotations

import math
import mmap
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from kb_env.gpu.layout import ALIGN, Layout, gaps, pack_parameters, place
from kb_env.gpu.loosened import close_enough
from kb_env.gpu.ncu import choose_metrics, merge, read_csv
from kb_env.gpu.oracle import Oracle
from kb_env.gpu.process import Worker, WorkerDied, WorkerTimeout, clean_environment
from kb_env.gpu.protocol import (
    Arm,
    Attach,
    Channel,
    ChannelClosed,
    ChannelTimeout,
    Check,
    Checked,
    Content,
    Done,
    Lay,
    Pose,
    Ran,
    Ready,
    Region,
    Run,
)
from kb_env.numerics import Expected
from kb_env.plan import Buffer, Launch, LaunchPlan, Pointer
from kb_env.task import load_task
from kb_env.types import Case, KbError, Profile, Task


@pytest.fixture
def channels() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def test_message_survives_the_channel(channels: tuple[Channel, socket.socket]) -> None:
    ours, theirs = channels
    message = Run(1, "bench0", True, True, 30_000, 0)
    Channel(theirs).send(message)
    assert ours.receive(1.0) == message


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00",  # longer than any frame
        b"\x01\x00\x00\x00\xfe\xc0",  # no such message
        b"\x01\x00\x00\x00\x07\xc1",  # not msgpack
        b"\x01\x00\x00\x00\x07\x80",  # fields missing
        b"\x00\x00\x00\x00\x00",  # empty body
        b"PASS speedup=300\n",
    ],
)
def test_what_is_no_message_closes_the_channel(channels: tuple[Channel, socket.socket], data: bytes) -> None:
    ours, theirs = channels
    theirs.sendall(data)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelClosed):
        ours.receive(1.0)


def test_wrong_field_type_is_refused(channels: tuple[Channel, socket.socket]) -> None:
    ours, theirs = channels
    Channel(theirs).send(Ran("0.001", 1.0, False))  # type: ignore[arg-type]
    with pytest.raises(ChannelClosed, match="microseconds"):
        ours.receive(1.0)


def test_half_a_frame_is_a_timeout_and_dribbling_does_not_extend_it(
    channels: tuple[Channel, socket.socket],
) -> None:
    ours, theirs = channels
    stop = threading.Event()

    def dribble() -> None:
        theirs.sendall(b"\xff\x00\x00\x00\x07")
        while not stop.wait(0.02):
            theirs.sendall(b"\x80")

    thread = threading.Thread(target=dribble)
    thread.start()
    started = time.monotonic()
    with pytest.raises(ChannelTimeout):
        ours.receive(0.2)
    stop.set()
    thread.join()
    assert time.monotonic() - started < 1.0


def test_child_that_is_no_worker_is_reported_with_its_last_line() -> None:
    worker = Worker("kb_env.gpu.no_such_module", 0)
    try:
        with pytest.raises(WorkerDied, match="no_such_module"):
            worker.expect(Ready, 20.0)
    finally:
        worker.kill()
    assert not worker.alive()


def test_silent_child_is_a_timeout_and_dies_as_a_group() -> None:
    # A launcher that starts a grandchild and then says nothing.
    worker = Worker("x", 0, prefix=("/bin/sh", "-c", "sleep 300 & sleep 300"))
    group = worker.pid
    with pytest.raises(WorkerTimeout):
        worker.expect(Ready, 0.3)
    worker.kill()
    deadline = time.monotonic() + 5.0
    while _group_alive(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _group_alive(group)


def test_a_peer_that_hung_up_is_seen_at_once(channels: tuple[Channel, socket.socket]) -> None:
    ours, theirs = channels
    Channel(theirs).send(Done())
    assert ours.receive(30.0) == Done()  # leaves the socket with a time limit of its own
    started = time.monotonic()
    assert not ours.hung_up()
    Channel(theirs).send(Done())
    theirs.close()
    assert not ours.hung_up()  # its last message comes first
    assert ours.receive(1.0) == Done()
    assert ours.hung_up()
    assert time.monotonic() - started < 1.0


def test_a_killed_child_is_not_alive() -> None:
    worker = Worker("kb_env.gpu.no_such_module", 0)
    try:
        os.kill(worker.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while worker.alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not worker.alive()
    finally:
        worker.kill()


def _group_alive(group: int) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state != "Z":
                return True
    return False


def test_children_inherit_nothing_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/tmp/evil.so")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-DCHEAT")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    environment = clean_environment()
    assert not {"LD_PRELOAD", "NVCC_PREPEND_FLAGS", "OPENAI_API_KEY"} & set(environment)
    assert all(Path(entry).is_absolute() for entry in environment["PYTHONPATH"].split(os.pathsep))


# The arena.


def _plan(*buffers: Buffer) -> LaunchPlan:
    return LaunchPlan(1, "check0", buffers, ())


def _task(rows: int = 7, cols: int = 33) -> tuple[Task, Case]:
    task = load_task("softmax")
    return task, Case(task.check[0].name, {"rows": rows, "cols": cols})


def test_layout_leaves_a_guard_around_every_buffer() -> None:
    task, case = _task()
    size = 7 * 33 * 4
    plan = _plan(
        Buffer("argument", "y", size), Buffer("workspace", "w0", 5), Buffer("symbol", "table", 64),
        Buffer("argument", "x", size),
    )  # fmt: skip
    layout = place(task, case, plan)
    names = [region.name for region in layout.regions]
    assert names == ["x", "y", "w0"]  # arguments in the task's order, whatever the plan's
    assert layout.offsets[2] == -1
    assert layout.offsets[0] == layout.regions[1].offset
    assert all(region.offset % ALIGN == 0 for region in layout.regions)
    spans = gaps(layout.regions, layout.used)
    assert len(spans) == 4 and all(end - start >= 64 << 10 for start, end in spans)
    covered = sum(end - start for start, end in spans) + sum(region.nbytes for region in layout.regions)
    assert covered == layout.used


@pytest.mark.parametrize(
    "buffer, words",
    [
        (Buffer("argument", "z", 4), "has not"),
        (Buffer("argument", "x", 4), "the task 924"),
        (Buffer("secret", "x", 4), "unknown kind"),
    ],
)
def test_layout_refuses_a_plan_that_contradicts_the_task(buffer: Buffer, words: str) -> None:
    task, case = _task()
    with pytest.raises(KbError, match=words):
        place(task, case, _plan(buffer))


def test_pointers_are_written_into_structs_and_wrap_at_64_bits() -> None:
    struct = b"\x01" * 8 + bytes(8) + b"\x02" * 4
    launch = Launch(
        "k", (1, 1, 1), (32, 1, 1), 0, (struct, bytes(8), b"\x07\x00\x00\x00"),
        (Pointer(0, 8, 1, 16), Pointer(1, 0, 0, -4)),
    )  # fmt: skip
    packed = pack_parameters(launch, [0x7F0000200000, 0x7F0000400000])
    assert packed[0] == b"\x01" * 8 + (0x7F0000400010).to_bytes(8, "little") + b"\x02" * 4
    assert packed[1] == (0x7F00001FFFFC).to_bytes(8, "little")
    assert packed[2] == launch.parameters[2]


# What ncu prints.

NCU_COLUMNS = (
    "ID", "Kernel Name", "Grid Size", "gpu__time_duration.sum", "dram__bytes.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "smsp__sass_average_branch_targets_threads_uniform.pct",
)  # fmt: skip
NCU = """==PROF== Connected to process 4711
COLUMNS
"","","","ns","byte","%","","",""
"0","a(float *, int)","(4, 1, 1)","1,000","2000","10","400","100","0"
"1","b(float *, int)","(4, 1, 1)","3000","6000","50","100","100","0"
==PROF== Disconnected from process 4711
""".replace("COLUMNS", ",".join(f'"{column}"' for column in NCU_COLUMNS))


def test_ncu_rows_merge_by_time_and_by_sums() -> None:
    static = Profile("static", registers=20.0, roofline_percent=40.0)
    found = merge(read_csv(NCU), static, floor_bytes=4000.0)
    assert found.source == "ncu" and found.sm_percent == pytest.approx(40.0)
    assert found.sectors_per_request == pytest.approx(2.5) and found.bytes_over_floor == pytest.approx(2.0)
    assert (found.registers, found.roofline_percent) == (20.0, 40.0)
    assert math.isnan(found.branch_efficiency_percent) and math.isnan(found.tensor_percent)


@pytest.mark.parametrize("text", ["", "==ERROR== no permission\n", NCU[:60], '\0\xff,"ID"\n'])
def test_no_rows_leave_the_static_profile(text: str) -> None:
    static = Profile("static")
    assert merge(read_csv(text), static, 1.0) is static


def test_only_counters_that_exist_are_asked_for() -> None:
    chosen = choose_metrics(frozenset({"gpu__time_duration", "sm__inst_executed_pipe_tensor"}))
    assert "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active" in chosen
    assert all("dram" not in metric for metric in chosen)
    assert len(choose_metrics()) > 15


# The oracle, on the CPU and through the host mirror.


@pytest.fixture
def armed() -> Iterator[tuple[Callable[[], Checked], mmap.mmap, dict[str, Region]]]:
    """An armed oracle, the arena as a runner sees it, and its regions by name; y holds the right answer."""
    task = load_task("softmax")
    case = task.check[1]
    layout = place(task, case, _plan(Buffer("workspace", "w0", 100)))
    mirror = os.memfd_create("test-mirror")
    os.ftruncate(mirror, layout.used)
    with torch.inference_mode(), mmap.mmap(mirror, layout.used) as view:
        oracle = Oracle("cpu", mirror)
        requests = (
            Pose(task), Attach(b"", layout.used), Content(case.name, 11),
            Lay(0, case.name, layout.regions, layout.used), Arm(0, 0xFF, 0x2A),
        )  # fmt: skip
        for message in requests:
            assert oracle.answer(message) == Done()
        regions = {region.name: region for region in layout.regions}
        x, y = regions["x"], regions["y"]
        assert view[y.offset : y.offset + y.nbytes] == b"\xff" * y.nbytes
        shape = case.sizes["rows"], case.sizes["cols"]
        values = torch.frombuffer(bytearray(view[x.offset : x.offset + x.nbytes]), dtype=torch.float32)
        right = torch.softmax(values.view(shape), dim=1).numpy().tobytes()
        view[y.offset : y.offset + y.nbytes] = right
        yield lambda: oracle.answer(Check()), view, regions  # type: ignore[misc]
    os.close(mirror)


def test_oracle_accepts_the_right_answer(armed) -> None:
    check, _, _ = armed
    verdict = check()
    assert verdict.ok, verdict.message
    assert 0 < verdict.worst <= 1


def test_oracle_sees_a_byte_in_each_guard_band(armed) -> None:
    check, view, regions = armed
    spots = {
        regions["x"].offset - 1: "1 bytes before x",
        regions["x"].offset + regions["x"].nbytes: "0 bytes past the end of x",
        regions["y"].offset + regions["y"].nbytes + 40: "40 bytes past the end of y",
        len(view) - 1: "past the end of w0",
    }
    for spot, words in spots.items():
        view[spot] = 0x2B
        verdict = check()
        assert (verdict.ok, verdict.fault) == (False, "guard") and words in verdict.message
        view[spot] = 0x2A
    assert check().ok


def test_oracle_sees_a_changed_input(armed) -> None:
    check, view, regions = armed
    view[regions["x"].offset + 4001] ^= 1
    assert check().fault == "input-changed"


def test_oracle_sees_an_unwritten_element(armed) -> None:
    check, view, regions = armed
    last = regions["y"].offset + regions["y"].nbytes - 4
    view[last : last + 4] = b"\xff" * 4
    verdict = check()
    assert (verdict.ok, verdict.fault) == (
        False,
        "unwritten",
    ) and "1 of 3000 elements of y" in verdict.message


def test_oracle_sees_one_wrong_element(armed) -> None:
    check, view, regions = armed
    view[regions["y"].offset + 2 : regions["y"].offset + 4] = b"\x00\x3f"
    assert check().fault == "value"


def test_workspace_may_hold_anything(armed) -> None:
    check, view, regions = armed
    view[regions["w0"].offset + 3] = 0
    assert check().ok


def _oracle(room: int) -> tuple[Oracle, mmap.mmap, Layout, Case]:
    """An oracle on the CPU with ``room`` bytes of arena behind softmax's second check case; close the map."""
    task = load_task("softmax")
    case = task.check[1]
    layout = place(task, case, _plan())
    mirror = os.memfd_create("test-mirror")
    os.ftruncate(mirror, layout.used + room)
    oracle, view = Oracle("cpu", os.dup(mirror)), mmap.mmap(mirror, layout.used + room)
    os.close(mirror)
    oracle.answer(Pose(task))
    oracle.answer(Attach(b"", layout.used + room))
    return oracle, view, layout, case


def _right(view: mmap.mmap, layout: Layout, case: Case) -> bytes:
    x = layout.regions[0]
    values = torch.frombuffer(bytearray(view[x.offset : x.offset + x.nbytes]), dtype=torch.float32)
    return torch.softmax(values.view(case.sizes["rows"], case.sizes["cols"]), dim=1).numpy().tobytes()


def test_guard_bands_reach_to_the_end_of_the_arena() -> None:
    oracle, view, layout, case = _oracle(ALIGN)
    with torch.inference_mode(), view:
        for message in (Content(case.name, 5), Lay(0, case.name, layout.regions, len(view)), Arm(0, 0, 9)):
            oracle.answer(message)
        y = layout.regions[1]
        view[y.offset : y.offset + y.nbytes] = _right(view, layout, case)
        assert oracle.answer(Check()).ok
        view[len(view) - 5] = 8
        assert oracle.answer(Check()).fault == "guard"


def test_slots_hold_their_own_content_and_are_judged_apart() -> None:
    stride = place(load_task("softmax"), load_task("softmax").check[1], _plan()).used
    oracle, view, layout, case = _oracle(stride)
    layouts = [layout, layout.moved(stride)]
    with torch.inference_mode(), view:
        for slot, laid in enumerate(layouts):
            oracle.answer(Content(case.name, 5 + slot, slot))
            start, end = slot * stride, (slot + 1) * stride
            oracle.answer(Lay(slot, case.name, laid.regions, end, start, slot))
            oracle.answer(Arm(slot, 0xFF, 7 + slot))
        x = [view[laid.regions[0].offset : laid.regions[0].offset + 64] for laid in layouts]
        assert x[0] != x[1]
        for laid in layouts:
            y = laid.regions[1]
            view[y.offset : y.offset + y.nbytes] = _right(view, laid, case)
        assert oracle.answer(Check(layout=0)).ok and oracle.answer(Check(layout=1)).ok
        view[layouts[1].regions[1].offset + 3] = 0
        assert oracle.answer(Check(layout=0)).ok and not oracle.answer(Check(layout=1)).ok


def test_an_area_without_buffers_is_one_guard_band() -> None:
    oracle, view, layout, _ = _oracle(ALIGN)
    with torch.inference_mode(), view:
        oracle.answer(Lay(9, "", (), len(view), layout.used))
        oracle.answer(Arm(9, 0, 3))
        assert oracle.answer(Check(values=False, layout=9)).ok
        view[layout.used + 4097] = 4
        verdict = oracle.answer(Check(values=False, layout=9))
        assert verdict.fault == "guard" and "far behind" in verdict.message


def test_what_tests_of_the_controls_loosen() -> None:
    """A common tolerance accepts zeros for small values; an exposed reference can be copied, and bent."""
    for value, ok in ((0.001, True), (0.5, False)):
        expected = Expected({"y": torch.tensor([value]).double()}, {}, {})
        assert close_enough(expected, {"y": torch.zeros(1)}).ok is ok
    oracle, view, layout, case = _oracle(2 * ALIGN)
    y = layout.regions[1]
    behind = -(-(y.offset + y.nbytes + (64 << 10)) // ALIGN) * ALIGN
    with torch.inference_mode(), view:
        for message in (Content(case.name, 5), Lay(0, case.name, layout.regions, len(view))):
            oracle.answer(message)
        oracle.answer(Arm(0, 0, 9))
        assert oracle.answer(Check()).fault == "unwritten"
        assert oracle.answer(Check(values=False)).ok
        oracle.answer(Arm(0, 0, 9, expose=True))
        loose = Check(guards=False, apart=False)
        assert not oracle.answer(loose).ok
        view[y.offset : y.offset + y.nbytes] = view[behind : behind + y.nbytes]
        assert oracle.answer(loose).ok and oracle.answer(Check(guards=False)).ok
        sevens = struct.pack("<f", 7.0) * (y.nbytes // 4)
        view[y.offset : y.offset + y.nbytes] = view[behind : behind + y.nbytes] = sevens
        assert oracle.answer(loose).ok and not oracle.answer(Check(guards=False)).ok
