"""The simulated evaluator end to end: verdicts, faults, the worker's life, determinism."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from kb_env.evaluators import Evaluator, Purpose
from kb_env.sim.client import Client, Failure
from kb_env.sim.evaluator import SimEvaluator, device_answers
from kb_env.sim.verify import case_seed
from kb_env.sim.wire import Request, freeze, memory_file, private_map
from kb_env.task import load_task
from kb_env.types import PROFILE_NAMES, Program, Status

SOFTMAX = load_task("softmax")

#: One thread a row: right, and far slower than the initial program.
ROW_THREAD = """
#include <cuda_runtime.h>
__global__ void rows_of(const float* x, float* y, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    const float* in = x + (size_t)r * cols;
    float* out = y + (size_t)r * cols;
    float largest = in[0];
    for (int c = 1; c < cols; c++) largest = fmaxf(largest, in[c]);
    float sum = 0;
    for (int c = 0; c < cols; c++) sum += expf(in[c] - largest);
    for (int c = 0; c < cols; c++) out[c] = expf(in[c] - largest) / sum;
}
void launch(const float* x, float* y, int rows, int cols) {
    rows_of<<<(rows + 255) / 256, 256>>>(x, y, rows, cols);
}
"""


def edited(search: str, replace: str) -> Program:
    assert SOFTMAX.source.count(search) >= 1, search
    return Program("softmax", SOFTMAX.source.replace(search, replace))


@pytest.fixture(scope="module")
def evaluator(store):
    with SimEvaluator("H200", store) as found:
        yield found


def test_it_is_an_evaluator(evaluator):
    assert isinstance(evaluator, Evaluator)
    assert (evaluator.trust, evaluator.source, evaluator.device) == ("sealed", "modelled", "H200")


def test_the_initial_program_is_verified_and_timed(evaluator):
    found = evaluator.evaluate(SOFTMAX, SOFTMAX.initial)
    assert found.status is Status.TIMED and found.verified, found.message
    assert found.verification is not None and found.verification.cases_run == len(SOFTMAX.check)
    assert found.source == "modelled" and found.trust == "sealed"
    (timing,) = found.timings
    assert timing.source == "modelled" and timing.baseline == "initial"
    assert timing.speedup == timing.speedup_low == timing.speedup_high == 1.0
    assert timing.candidate_us[0] >= timing.floor_us > 0
    assert found.limiter
    assert set(found.seconds) == {"build", "record", "verify", "time"}
    profile = found.profile
    assert profile.source == "sim" and profile.launches == 1.0 and profile.registers > 0
    assert profile.sectors_per_request == pytest.approx(4.0)
    assert profile.bank_conflict_ways == pytest.approx(1.0, abs=0.1)
    assert 0.9 < profile.bytes_over_floor < 1.5
    named = {name: getattr(profile, name) for name in PROFILE_NAMES}
    for name, value in named.items():
        assert value != value or (value >= 0 and (value <= 100 or not name.endswith("percent"))), named


def test_a_slower_program_is_slower(evaluator):
    found = evaluator.evaluate(SOFTMAX, Program("softmax", ROW_THREAD))
    assert found.verified, found.message
    assert found.speedup < 0.2
    assert found.speedup_low < found.speedup < found.speedup_high
    # Three reads of a whole sector each, one store likewise.
    assert found.profile.sectors_per_request == pytest.approx(32.0, rel=0.02)


def test_a_baseline_other_than_initial(evaluator):
    slow = Program("softmax", ROW_THREAD)
    found = evaluator.evaluate(SOFTMAX, SOFTMAX.initial, Purpose(baseline=slow, baseline_name="best"))
    back = evaluator.evaluate(SOFTMAX, slow)
    assert found.timings[0].baseline == "best"
    assert found.speedup == pytest.approx(1 / back.speedup)


def test_wrong_numbers_are_wrong(evaluator):
    found = evaluator.evaluate(SOFTMAX, edited("/ sum;", "/ (sum * 1.001f);"))
    assert found.status is Status.WRONG and not found.verified
    assert found.timings is None and found.profile is None and found.speedup is None
    assert "check0" in found.message and found.verification.fault == "value"


def test_an_unwritten_element_is_named(evaluator):
    found = evaluator.evaluate(SOFTMAX, edited("out[c] = expf", "if (c != 17) out[c] = expf"))
    assert found.status is Status.WRONG
    assert found.verification.fault == "unwritten" and "never written" in found.message


def test_a_changed_input_is_wrong(evaluator):
    source = SOFTMAX.source.replace("/ sum;", "/ sum;\n    if (threadIdx.x == 0) ((float*)in)[0] = 3.0f;")
    found = evaluator.evaluate(SOFTMAX, Program("softmax", source))
    assert found.status is Status.WRONG and found.verification.fault == "input-changed"


def test_out_of_bounds_is_a_crash(evaluator):
    found = evaluator.evaluate(SOFTMAX, edited("out[c] = expf", "out[c + 64 * 1024 * 1024] = expf"))
    assert found.status is Status.CRASHED
    assert "check0" in found.message


def test_one_element_past_the_end_is_a_crash(evaluator):
    source = SOFTMAX.source.replace(
        "/ sum;", "/ sum;\n    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) out[cols] = 0.0f;"
    )
    assert evaluator.evaluate(SOFTMAX, Program("softmax", source)).status is Status.CRASHED


def test_an_endless_loop_times_out_and_the_next_evaluation_is_right(evaluator):
    first = "float largest = -INFINITY;"
    assert first in SOFTMAX.source
    hang = f"{first}\n    while (((volatile float*)y)[0] != 12345.0f) {{}}"
    source = SOFTMAX.source.replace(first, hang)
    started = time.monotonic()
    found = evaluator.evaluate(SOFTMAX, Program("softmax", source))
    assert found.status is Status.TIMED_OUT, found.message
    assert time.monotonic() - started < 60
    assert evaluator.evaluate(SOFTMAX, SOFTMAX.initial).verified


def test_what_does_not_build_is_data(evaluator):
    found = evaluator.evaluate(SOFTMAX, edited("__syncthreads();", "__syncthreads()"))
    assert found.status is Status.BUILD_FAILED and found.verification is None and found.timings is None


def test_a_killed_worker_is_replaced(evaluator):
    assert evaluator.evaluate(SOFTMAX, SOFTMAX.initial).verified
    before = evaluator._client.pid
    os.kill(before, signal.SIGKILL)
    assert evaluator.evaluate(SOFTMAX, SOFTMAX.initial, Purpose(seed=5)).verified
    assert evaluator._client.pid != before


def test_the_same_evaluation_to_the_bit(evaluator, store, tmp_path):
    program = Program("softmax", ROW_THREAD)
    with SimEvaluator("H200", tmp_path) as fresh:
        first = fresh.evaluate(SOFTMAX, program)
    second = evaluator.evaluate(SOFTMAX, program)
    plain = [dataclasses.replace(item, seconds={}, build=second.build) for item in (first, second)]
    assert plain[0] == plain[1] or repr(plain[0]) == repr(plain[1])  # NaN fields are not equal


def test_devices_differ(evaluator, store):
    with SimEvaluator("A100", store) as other:
        found = other.evaluate(SOFTMAX, SOFTMAX.initial)
    assert found.device == "A100"
    assert (
        found.timings[0].candidate_us[0]
        > evaluator.evaluate(SOFTMAX, SOFTMAX.initial).timings[0].candidate_us[0]
    )


def test_seeds_follow_program_task_seed_and_case():
    seeds = {case_seed(p, t, s, c) for p in "ab" for t in "cd" for s in (0, 1) for c in ("check0", "check1")}
    assert len(seeds) == 16
    assert all(0 <= seed < 1 << 62 for seed in seeds)


def test_launchers_are_told_of_the_modelled_gpu():
    values = dict(device_answers(SimEvaluator("L40S").model).attributes)
    assert values[16] == 142 and values[81] == 100 << 10 and values[97] == 99 << 10


# -- the worker alone ------------------------------------------------------------------------------


def empty_request() -> tuple[Request, tuple[int, int]]:
    return Request(1, "", 1, 1, 5, ()), (memory_file(1), memory_file(1))


def test_a_worker_ends_with_its_client():
    client = Client()
    request, files = empty_request()
    assert not isinstance(client.ask(request, files, 10.0), Failure)
    pid = client.pid
    client.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_a_worker_that_does_not_answer_is_killed():
    client = Client()
    request, files = empty_request()
    client.ask(request, files, 10.0)
    pid = client.pid
    os.kill(pid, signal.SIGSTOP)
    found = client.ask(request, files, 0.5)
    assert isinstance(found, Failure) and found.status is Status.TIMED_OUT
    assert not os.path.exists(f"/proc/{pid}")
    assert not isinstance(client.ask(request, files, 10.0), Failure)
    client.close()


def test_a_worker_has_limits_and_no_network():
    client = Client()
    request, files = empty_request()
    client.ask(request, files, 10.0)
    limits = Path(f"/proc/{client.pid}/limits").read_text()
    core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert core.split()[4] == "0"
    space = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert space.split()[3] != "unlimited"
    assert os.getpgid(client.pid) == client.pid
    client.close()


def test_memory_files_can_neither_be_cut_nor_written_once_frozen():
    file = memory_file(4096)
    with pytest.raises(OSError):
        os.ftruncate(file, 0)
    os.pwrite(file, b"x", 0)
    freeze(file)
    with pytest.raises(OSError):
        os.pwrite(file, b"y", 0)
    with private_map(file, 4096) as view:
        view[0:1] = b"z"  # a copy
    assert os.pread(file, 1, 0) == b"x"
    os.close(file)
