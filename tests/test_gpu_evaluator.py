"""The sealed evaluator on a GPU: honest programs pass, hostile and broken ones end as they should."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb_env.evaluators import Purpose
from kb_env.gpu.controls import Controls
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.gpu.sanitizer import find_tool
from kb_env.gpu.statistics import paired
from kb_env.task import expected_status, load_task, solutions
from kb_env.types import Evaluation, KbError, Program, Status

pytestmark = pytest.mark.gpu

#: An honest softmax with a place for a mistake at the end of each row's work.
SOFTMAX = """
#include <cuda_runtime.h>
#include <math.h>
%(globals)s
__global__ void rows_kernel(const float* x, float* y, int rows, int cols) {
    int r = blockIdx.x;
    const float* in = x + (size_t)r * cols;
    float* out = y + (size_t)r * cols;
    __shared__ float part[256];
    float top = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += 256) top = fmaxf(top, in[c]);
    part[threadIdx.x] = top;
    __syncthreads();
    for (int s = 128; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + s]);
        __syncthreads();
    }
    top = part[0];
    __syncthreads();
    float sum = 0;
    for (int c = threadIdx.x; c < cols; c += 256) sum += expf(in[c] - top);
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int s = 128; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    sum = part[0];
    for (int c = threadIdx.x; c < cols; c += 256) out[c] = expf(in[c] - top) / sum;
    __syncthreads();
    %(extra)s
}
void launch(const float* x, float* y, int rows, int cols) {
    rows_kernel<<<%(grid)s, 256>>>(x, y, rows, cols);
}
"""

HANG = "if (r == 0) while (*(volatile const float*)in == *(volatile const float*)in) __nanosleep(100);"
PAST_THE_END = "if (r == rows - 1 && threadIdx.x == 0) y[(size_t)rows * cols + 5] = 1.0f;"
BEFORE_THE_INPUT = "if (r == 0 && threadIdx.x == 0) const_cast<float*>(x)[-1] = 1.0f;"


def softmax(extra: str = "", code: str = "", grid: str = "rows") -> Program:
    return Program("softmax", SOFTMAX % {"extra": extra, "globals": code, "grid": grid})


@pytest.fixture(scope="module")
def gpu(store: Path) -> Iterator[GpuEvaluator]:
    with GpuEvaluator(store=store) as evaluator:
        yield evaluator


def evaluate(gpu: GpuEvaluator, program: Program) -> Evaluation:
    return gpu.evaluate(load_task(program.task), program)


@pytest.mark.parametrize("name", ["softmax", "gelu"])
def test_right_programs_are_verified_and_timed(gpu: GpuEvaluator, name: str) -> None:
    task = load_task(name)
    programs = solutions(task, "right")
    assert len(programs) >= 2
    for label, program in programs.items():
        found = gpu.evaluate(task, program)
        assert found.status is Status.TIMED, f"{label}: {found.message}"
        assert found.verified and found.verification is not None
        assert found.verification.cases_run == len(task.check) + len(task.bench)
        assert found.timings is not None and len(found.timings) == len(task.bench)
        assert all(len(t.candidate_us) >= 30 and t.source == "measured" for t in found.timings)
        assert found.speedup_low <= found.speedup <= found.speedup_high
        assert {"open", "baseline", "verify", "time"} <= set(found.seconds)


@pytest.mark.parametrize("name", ["softmax", "gelu"])
def test_wrong_programs_get_the_status_they_should(gpu: GpuEvaluator, name: str) -> None:
    task = load_task(name)
    programs = solutions(task, "wrong")
    assert len(programs) >= 3
    for label, program in programs.items():
        found = gpu.evaluate(task, program)
        assert found.status in expected_status(program.text), f"{label}: {found.status} {found.message}"
        assert found.speedup is None


def test_the_honest_frame_of_the_attacks_below_passes(gpu: GpuEvaluator) -> None:
    found = evaluate(gpu, softmax())
    assert found.status is Status.TIMED, found.message


@pytest.mark.parametrize(
    "program, status, words",
    [
        (softmax(extra=HANG), Status.TIMED_OUT, "killed"),
        (softmax(extra="*(volatile float*)16 = 1.0f;"), Status.CRASHED, "illegal address"),
        (softmax(extra="__trap();"), Status.CRASHED, "CUDA_ERROR"),
        (softmax(extra="*(volatile int*)((char*)y + 1) = 1;"), Status.CRASHED, "misaligned"),
        (softmax(extra=PAST_THE_END), Status.WRONG, "20 bytes past the end of y"),
        (softmax(extra=BEFORE_THE_INPUT), Status.WRONG, "4 bytes before x"),
        (softmax(extra="if (r == 0) const_cast<float*>(x)[threadIdx.x % cols] = 0;"), Status.WRONG, "its input x"),
        (softmax(grid="rows > 1 ? rows - 1 : 1"), Status.WRONG, "not written"),
        (softmax(grid="1 << 30"), Status.CRASHED, "illegal address"),
    ],
    ids=["hang", "illegal", "trap", "misaligned", "past-end", "before", "input", "unwritten", "wild-grid"],
)  # fmt: skip
def test_attack_ends_as_it_should_and_the_next_evaluation_works(
    gpu: GpuEvaluator, program: Program, status: Status, words: str
) -> None:
    found = evaluate(gpu, program)
    assert (found.status, found.speedup) == (status, None), found.message
    assert words in found.message
    started = time.monotonic()
    after = evaluate(gpu, softmax())
    assert after.status is Status.TIMED, after.message
    assert after.seconds["start"] < 3.0, f"{time.monotonic() - started:.1f} s"


def test_module_globals_carry_nothing_from_run_to_run(gpu: GpuEvaluator) -> None:
    """Honest in the first run after a load, a no-op afterwards: without a fresh module it would be caught
    as unwritten; with one it is simply honest every time."""
    code = "__device__ int runs;"
    extra = "if (atomicAdd(&runs, 1) >= rows * 256) out[0] = 0.0f;"
    assert evaluate(gpu, softmax(extra=extra, code=code)).status is Status.TIMED
    with GpuEvaluator(store=gpu.store, controls=Controls(reload=False)) as loose:
        assert evaluate(loose, softmax(extra=extra, code=code)).status is Status.WRONG


def test_without_guards_the_overrun_would_pass(gpu: GpuEvaluator) -> None:
    with GpuEvaluator(store=gpu.store, controls=Controls(guards=False)) as loose:
        assert evaluate(loose, softmax(extra=PAST_THE_END)).status is Status.TIMED


def test_host_mirror_gives_the_same_verdicts(gpu: GpuEvaluator) -> None:
    with GpuEvaluator(store=gpu.store, controls=Controls(share=False, min_pairs=6, max_pairs=6)) as mirrored:
        good = evaluate(mirrored, softmax())
        assert good.status is Status.TIMED, good.message
        assert good.health["memory"] == "host mirror"
        assert evaluate(mirrored, softmax(extra=PAST_THE_END)).status is Status.WRONG


def test_a_program_against_itself_is_no_faster(gpu: GpuEvaluator) -> None:
    task = load_task("softmax")
    timings = gpu.evaluate(task, task.initial).timings
    assert timings is not None
    # At this level one honest run in a thousand would fail here.
    assert paired(timings[0].candidate_us, timings[0].baseline_us, level=0.999).contains(1.0)


def test_another_baseline_than_the_initial_program(gpu: GpuEvaluator) -> None:
    task = load_task("softmax")
    best = next(iter(solutions(task, "right").values()))
    found = gpu.evaluate(task, task.initial, Purpose(baseline=best, baseline_name="best"))
    assert found.timings is not None and found.timings[0].baseline == "best"


def test_killed_runner_ends_the_evaluation_and_not_the_evaluator(gpu: GpuEvaluator) -> None:
    task = load_task("softmax")
    assert evaluate(gpu, softmax()).status is Status.TIMED  # with it the A/A control is done
    prepared = gpu.prepare(task, softmax(extra=HANG))
    timer = threading.Timer(0.7, lambda: [os.kill(pid, signal.SIGKILL) for pid in _children("gpu.runner")])
    timer.start()
    found = gpu.measure(prepared)
    timer.join()
    assert found.status is Status.CRASHED and "runner died" in found.message
    assert evaluate(gpu, softmax()).status is Status.TIMED


def test_killed_oracle_is_the_harness_failure_and_a_new_one_starts(gpu: GpuEvaluator) -> None:
    for pid in _children("gpu.oracle"):
        os.kill(pid, signal.SIGKILL)
    try:
        found = evaluate(gpu, softmax())
    except KbError as error:
        assert "oracle" in str(error)
        found = evaluate(gpu, softmax())
    assert found.status is Status.TIMED, found.message


def test_profile_has_counters_or_says_static(gpu: GpuEvaluator) -> None:
    task = load_task("softmax")
    found = gpu.evaluate(task, softmax(), Purpose(profile=True))
    assert found.profile is not None and found.profile.source in ("ncu", "static")
    assert found.profile.registers > 0 and found.profile.launches == 1
    assert 0 < found.profile.roofline_percent < 150
    if found.profile.source == "ncu":
        assert 0 < found.profile.dram_percent <= 100 and found.profile.sectors_per_request > 0


def test_libraries_are_timed_by_block_and_reward_nothing(gpu: GpuEvaluator) -> None:
    task = load_task("softmax")
    found = gpu.evaluate(task, task.initial, Purpose(libraries=("eager",)))
    assert found.status is Status.TIMED and found.timings is not None, found.message
    assert [timing.baseline for timing in found.timings] == ["initial"]
    (eager,) = found.libraries
    assert eager.baseline == "eager" and len(eager.baseline_us) == len(eager.candidate_us) >= 30
    assert eager.speedup_low <= eager.speedup <= eager.speedup_high
    assert found.health["library_eager"] in ("graph", "stream")
    assert 0.3 < eager.speedup < 10


#: Faster than the initial program, right, and reads one element past the end of its input.
READS_PAST_THE_END = """
#include <cuda_runtime.h>
__global__ void gelu(const float* x, float* y, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    for (int k = i; k < min(i + 4, n); k++) {
        float v = x[k], next = x[k + 1];
        y[k] = 0.5f * v * (1.0f + erff(v * 0.70710678f)) + (next == 1e38f ? 1.0f : 0.0f);
    }
}
void launch(const float* x, float* y, int n) { gelu<<<(n + 1023) / 1024, 256>>>(x, y, n); }
"""


@pytest.mark.skipif(find_tool() is None, reason="needs compute-sanitizer")
def test_a_record_with_a_memory_fault_is_rejected_with_its_line(gpu: GpuEvaluator) -> None:
    task = load_task("gelu")
    slow = Program("gelu", READS_PAST_THE_END.replace("float v = x[k]", "__nanosleep(2000); float v = x[k]"))
    purpose = Purpose(baseline=slow, sanitize=True)
    found = gpu.evaluate(task, Program("gelu", READS_PAST_THE_END), purpose)
    assert found.status is Status.WRONG and found.speedup is None
    assert (
        "memcheck: Invalid __global__ read of size 4 bytes" in found.message
        and "kernel.cu:6" in found.message
    )
    best = next(iter(solutions(task, "right").values()))
    honest = gpu.evaluate(task, best, purpose)
    assert honest.status is Status.TIMED, honest.message
    assert honest.health["sanitized"] == "memcheck, racecheck, initcheck, synccheck"


def test_nothing_is_left_running_after_close(store: Path) -> None:
    before = set(_children("kb_env.gpu"))
    evaluator = GpuEvaluator(store=store)
    evaluate(evaluator, softmax())
    evaluate(evaluator, softmax(extra=HANG))
    evaluator.close()
    assert set(_children("kb_env.gpu")) <= before


def _children(word: str) -> list[int]:
    """Living child processes of this one whose command line holds ``word``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and stat[0] != "Z" and word in command:
            found.append(int(entry.name))
    return found
