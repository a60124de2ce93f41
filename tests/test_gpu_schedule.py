"""What ends a measurement without a GPU in sight: floor, referee, deadline, the GPU's description."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from experiments.bench_tasks import Row, table
from kb_env.devices import floor_us
from kb_env.evaluators import Prepared
from kb_env.gpu.bench import Bench, CandidateFault
from kb_env.gpu.controls import Controls
from kb_env.gpu.protocol import Channel, DeviceFacts, Load, MessageTooLong
from kb_env.gpu.referee import SLOPE_SHARE, SLOPE_SLACK_US, singles, slope_limit
from kb_env.gpu.roofline import describe, roofline_us
from kb_env.gpu.schedule import Deadline, check_floor
from kb_env.plan import Buffer, LaunchPlan
from kb_env.task import load_task
from kb_env.types import BuildResult, KbError, Status, Task, Timing


def facts(name: str) -> DeviceFacts:
    return DeviceFacts(
        name, "GPU-0", "sm_90a", 13000, 132, 60 << 20, 141 << 30, 1980.0, 3201.0, 6016, 228 << 10, 64
    )


def timing(microseconds: float) -> Timing:
    return Timing("bench0", "initial", (microseconds,) * 30, (40.0,) * 30, 1.0, 0.9, 1.1, "measured")


@pytest.mark.parametrize(
    "name, known",
    [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA GeForce RTX 4090", "RTX4090")],
)
def test_gpu_is_described_by_the_drivers_name(name: str, known: str) -> None:
    device = describe(facts(name))
    assert device is not None and device.name == known
    assert device.l2_bytes == 60 << 20  # the driver's figure, not the table's


@pytest.mark.parametrize("name", ["NVIDIA B999", "NVIDIA H2000", ""])
def test_unknown_gpu_has_no_description_and_no_floor(name: str) -> None:
    assert describe(facts(name)) is None
    assert check_floor(None, load_task("softmax"), (timing(0.001),)) == (timing(0.001),)


def test_faster_than_physics_is_rejected_and_the_floor_recorded() -> None:
    task, device = load_task("softmax"), describe(facts("NVIDIA H200"))
    assert device is not None
    floor = floor_us(device, task, task.bench[0])
    assert 0 < floor < roofline_us(device, task, task.bench[0])
    with pytest.raises(CandidateFault, match="needs at least") as caught:
        check_floor(device, task, (timing(0.9 * floor),))
    assert (caught.value.status, caught.value.fault) == (Status.WRONG, "floor")
    (found,) = check_floor(device, task, (timing(1.1 * floor),))
    assert found.floor_us == floor


def test_referee_takes_what_the_host_adds_to_both_sides_and_not_a_forged_event() -> None:
    times = ([10.0] * 30, [50.0] * 30)
    found = singles(times, ([31.0] * 30, [30.0] * 30))
    assert found.agreed and found.extra_us == pytest.approx(1.0)
    # The candidate ran 80 us but its events say 10.
    found = singles(times, ([100.0] * 30, [30.0] * 30))
    assert not found.agreed and found.extra_us == pytest.approx(70.0)
    # The baseline's events were stretched.
    assert not singles(times, ([30.0] * 30, [-40.0] * 30)).agreed


def test_slopes_may_differ_by_the_write_back_of_one_cache_and_a_share() -> None:
    device = describe(facts("NVIDIA H200"))
    short, long = ([10.0] * 3, [20.0] * 3), ([10.0] * 3, [1020.0] * 3)
    assert 10.0 < slope_limit(short, device) - SLOPE_SLACK_US < 30.0
    assert slope_limit(long, device) - slope_limit(short, device) == pytest.approx(SLOPE_SHARE * 1000.0)


def test_over_the_deadline_is_a_status_whoever_used_the_time() -> None:
    deadline = Deadline(0.01)
    deadline.check("time", 5.0)
    time.sleep(0.02)
    for own in (0.009, 0.001):
        with pytest.raises(CandidateFault, match="over 0 s in all") as caught:
            deadline.check("time", own)
        assert caught.value.status is Status.TIMED_OUT


def test_table_names_every_baseline_and_counts_faults() -> None:
    good = Row("a", 100.0, "right/x", 50.0, 2.0, 1.9, 2.1, 40.0, {"eager": 60.0, "compile": 55.0})
    good.programs = {"right/x": {}, "right/y": {}, "wrong/z": {}}
    bad = Row("b", programs={"right/x": {}}, faults=["right/x is WRONG, not TIMED: no"])
    lines = table([good, bad], "GPU").splitlines()
    assert "eager us" in lines[2] and "compile us" in lines[2]
    assert lines[4].split(" | ")[-2:] == ["2 of 2", "1 of 1 |"] and "| 80.0 |" in lines[4]
    assert lines[5].split(" | ")[-2:] == ["0 of 1", "0 of 0 |"]


def _prepared(task: Task, *workspaces: int) -> Prepared:
    """A program's plans as the recorder makes them, without a build: nothing here loads it."""
    plans = {}
    for case in (*task.check, *task.bench):
        buffers = [Buffer("argument", a.name, a.nbytes(case.sizes)) for a in task.arguments if a.shape]
        buffers += [Buffer("workspace", f"workspace{i}", size) for i, size in enumerate(workspaces)]
        plans[case.name] = LaunchPlan(1, case.name, tuple(buffers), ())
    return Prepared(task, task.initial, BuildResult(True, "", 0.0), plans, None)


def test_memory_that_only_the_program_lacks_is_its_own_affair() -> None:
    """Before any process is asked: a workspace that does not fit is a status, a task that does not fit is not."""
    task = load_task("softmax")
    with socket.socket() as nobody:

        def bench(memory: int) -> Bench:
            known = replace(facts("NVIDIA H200"), memory_bytes=memory)
            return Bench(nobody, nobody, known, Controls(), -1)  # type: ignore[arg-type]

        with pytest.raises(CandidateFault, match="workspace needs") as caught:
            bench(400 << 20).open(task, _prepared(task, 1 << 30), _prepared(task))
        assert caught.value.status is Status.REFUSED
        with pytest.raises(KbError, match="smaller cases"):
            bench(64 << 20).open(task, _prepared(task), _prepared(task))
        wrong = _prepared(task)
        wrong.plans["bench0"] = LaunchPlan(1, "bench0", (Buffer("argument", "z", 4),), ())
        with pytest.raises(CandidateFault, match="has not") as caught:
            bench(8 << 30).open(task, wrong, _prepared(task))
        assert caught.value.status is Status.REFUSED


def test_a_message_that_is_too_long_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_env.gpu.protocol.FRAME_LIMIT", 100)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(MessageTooLong, match="make the program smaller"):
        Channel(ours).send(Load(0, bytes(200)))
