"""Reading compute-sanitizer's logs, which needs no GPU. The tools themselves run in test_gpu_evaluator.py."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kb_env.backends import gpu_obstacle
from kb_env.gpu.crew import Crew
from kb_env.gpu.evaluator import BASELINES, GpuEvaluator
from kb_env.gpu.oracle import Oracle
from kb_env.gpu.protocol import DeviceFacts, Draw, Drawn, Pose
from kb_env.gpu.sanitizer import Report, Sanitizer, StandIn, finding, small_case
from kb_env.prepare import prepare
from kb_env.task import load_task
from kb_env.types import Case, Program

CLEAN = """========= COMPUTE-SANITIZER
========= ERROR SUMMARY: 0 errors
"""
WRITE = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at add(const float *, const float *, float *, int)+0x90 in kernel.cu:12
=========     by thread (31,0,0) in block (0,0,0)
=========     Access to 0x7f6a13a00ffc is out of bounds
=========         Host Frame: cuLaunchKernelEx [0x30ee8c] in libcuda.so.1
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sums(float *, int)+0x60 in /scratch/kernel.cu:7
=========     and Read access at sums(float *, int)+0x90 in /scratch/kernel.cu:9 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNING = RACE.replace("Error: Race", "Warning: Race").replace(
    "(1 error, 0 warnings)", "(0 errors, 1 warning)"
)
CRASH = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at k(float *)+0x10
=========     by thread (0,0,0) in block (0,0,0)
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
BROKEN = """========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: no memory for the tool
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    "log, wanted",
    [
        (CLEAN, None),
        (WARNING, None),
        ("", None),
        (WRITE.partition("========= ERROR SUMMARY")[0], None),  # the tool did not come to an end
        (WRITE, "Invalid __global__ write of size 4 bytes in add, kernel.cu:12"),
        (RACE, "Error: Race reported between Write access in sums, kernel.cu:7"),
        (BROKEN, None),
        (BROKEN.replace("Internal", "Error: Internal"), None),
        (
            WRITE.replace("=========     at", "========= Internal Sanitizer Error: x\n=========     at"),
            "Invalid __global__ write of size 4 bytes in add, kernel.cu:12",
        ),
        (CRASH, "Uninitialized __global__ memory read of size 4 bytes"),
    ],
)
def test_first_finding_with_its_line(log: str, wanted: str | None) -> None:
    assert finding(log) == wanted


def test_names_without_end_cost_no_time() -> None:
    """A file's name is the program's choice (#line), and may look like many places."""
    log = WRITE.replace("kernel.cu:12", "at x+0x1 in " * 10_000)
    started = time.process_time()
    assert finding(log) == "Invalid __global__ write of size 4 bytes"
    assert time.process_time() - started < 1.0


def test_without_the_tool_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kb_env.gpu.sanitizer.find_tool", lambda: None)
    task = load_task("softmax")
    assert Sanitizer(0).check(None, task.check[0], ()) == Report(())  # type: ignore[arg-type]


def test_a_small_case_with_something_to_it() -> None:
    task = load_task("vector_add")
    sizes = [small_case(task).sizes["n"], small_case(replace(task, check=(Case("c", {"n": 1}),))).sizes["n"]]
    assert sizes[0] * 12 >= 4096 and sizes[0] < 100_000 and sizes[1] == 1


def test_the_oracle_hands_out_inputs_for_a_run_nobody_looks_at() -> None:
    task = load_task("softmax")
    with torch.inference_mode():
        oracle = Oracle("cpu", -1)
        oracle.answer(Pose(task))
        case = small_case(task)
        drawn = oracle.answer(Draw(case.name, 5))
        assert isinstance(drawn, Drawn)
        ((name, data),) = drawn.inputs
        assert (name, len(data)) == ("x", 4 * case.sizes["rows"] * case.sizes["cols"])
        assert oracle.answer(Draw(case.name, 6)) != drawn


#: Stands where compute-sanitizer does: takes its options, runs the program, finds nothing.
TOOL = """#!/bin/sh
log=
while [ "${1#--}" != "$1" ]; do [ "$1" = --log-file ] && log=$2; shift 2; done
"$@"
printf '========= ERROR SUMMARY: 0 errors\\n' > "$log"
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_program_that_did_not_run_counts_for_no_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Path
) -> None:
    """Without a GPU the replay fails at once: a summary without errors must not be taken for a clean run."""
    if gpu_obstacle() is None:
        pytest.skip("the replay works here")
    (tmp_path / "tool").write_text(TOOL)
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setattr("kb_env.gpu.sanitizer.find_tool", lambda: str(tmp_path / "tool"))
    task = load_task("vector_add")
    case = small_case(task)
    prepared = prepare(task, task.initial, "sm_90a", store, (case,))
    report = Sanitizer(0).check(prepared, case, ())
    assert report.tools == () and report.finding is None and len(report.failed) == 4


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_a_long_run_keeps_few_baselines(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """Preparing needs of a GPU only its description, which is given here."""
    shape = (
        "NVIDIA H200",
        "GPU-0",
        "sm_90a",
        13000,
        132,
        60 << 20,
        141 << 30,
        1980.0,
        3201.0,
        6016,
        228 << 10,
        64,
    )
    monkeypatch.setattr(Crew, "facts", DeviceFacts(*shape))
    task = load_task("vector_add")
    gpu = GpuEvaluator(store=store)
    first = gpu._baseline(task, task.initial)
    assert first.image and gpu._baseline(task, task.initial) is first
    gpu._baselines.update({("", str(i)): first for i in range(BASELINES - 1)})
    other = gpu._baseline(task, replace(task.initial, text=task.initial.text + "// best\n"))
    assert gpu._baselines == {(task.key, other.program.key): other}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_simulator_stands_in_and_names_the_line(store: Path) -> None:
    folder = Path(__file__).parent / "redteam" / "exploits"
    text = (folder / "device_race_without_barrier.cu").read_text()
    task = load_task("row_sum")
    case = small_case(task)
    stand_in = StandIn()
    try:
        report = stand_in.check(prepare(task, Program("row_sum", text), "sm_90a", store, (case,)), case)
        assert report.tools == ("simulator",) and report.finding is not None
        assert " at kernel.cu:" in report.finding
        honest = stand_in.check(prepare(task, task.initial, "sm_90a", store, (case,)), case)
        assert honest == Report(("simulator",))
    finally:
        stand_in.close()
