"""The sanitizer: planted bugs are found at their lines, honest programs pass, findings reject a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sim_engine_runner import needs_nvcc

from experiments.bench_sanitize import TESTS, compiled, found, planted_bugs, run
from kb_env.evaluators import Purpose
from kb_env.sim.evaluator import SimEvaluator
from kb_env.task import load_task
from kb_env.types import Fault, Program, Status

pytestmark = needs_nvcc

BUGS = planted_bugs()


@pytest.fixture(scope="module")
def ptx() -> str:
    return compiled(BUGS)


@pytest.fixture(scope="module")
def evaluator(store: Path):
    with SimEvaluator("H200", store) as opened:
        yield opened


def test_there_are_forty_bugs_and_a_gpu_hides_half_of_them():
    assert len(BUGS) == 40
    assert 2 * sum(bug.hidden for bug in BUGS) >= len(BUGS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_at_its_line(bug, ptx):
    findings = run(bug, ptx)
    assert found(bug, findings), [item.text for item in findings]
    assert all(item.kernel == bug.name and item.count >= 1 for item in findings)


def honest(name: str) -> Program:
    text = (TESTS / "redteam" / "honest" / f"{name}.cu").read_text()
    return Program(text.partition("// task: ")[2].split()[0], text)


@pytest.mark.parametrize("name", ["decoupled_scan", "last_block_finishes", "cooperative_groups_reduce"])
def test_honest_synchronisation_raises_no_alarm(name, evaluator):
    program = honest(name)
    assert evaluator.findings(load_task(program.task), program) == ()


def test_a_program_that_cannot_be_run_is_a_fault(evaluator):
    task = load_task("vector_add")
    answer = evaluator.findings(task, Program("vector_add", task.source.replace("+", "+ +;", 1)))
    assert isinstance(answer, Fault) and answer.status is Status.BUILD_FAILED


#: Right numbers, and faster than the initial program: but the second half of each block reads shared memory too early.
RACY = """
__global__ void add(const float* a, const float* b, float* y, int n) {
    __shared__ float s[2];
    if (threadIdx.x == 0) s[0] = a[0];
    if (threadIdx.x == 32) s[1] = s[0];
    for (int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x); i < n; i += 4 * gridDim.x * blockDim.x)
        if (i + 3 < n && n % 4 == 0) {
            float4 p = *(const float4*)(a + i), q = *(const float4*)(b + i);
            *(float4*)(y + i) = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
        } else {
            for (int k = i; k < n && k < i + 4; k++) y[k] = a[k] + b[k];
        }
    if (threadIdx.x == 32 && s[1] != a[0]) y[0] = 1.0f;
}
void launch(const float* a, const float* b, float* y, int n) { add<<<1024, 256>>>(a, b, y, n); }
"""


def test_a_record_with_a_race_is_rejected(evaluator):
    task = load_task("vector_add")
    program = Program(task.name, RACY)
    plain = evaluator.evaluate(task, program)
    looked = evaluator.evaluate(task, program, Purpose(sanitize=True))
    assert plain.status is Status.TIMED, plain.message
    assert plain.speedup > 1.0
    assert looked.status is Status.WRONG and looked.fault.stage == "sanitize"
    assert "race at kernel.cu:5" in looked.message


def test_the_command_says_what_it_found(tmp_path, store):
    file = tmp_path / "racy.cu"
    file.write_text(RACY)
    command = [sys.executable, "-m", "experiments.cli", "check", "vector_add", str(file)]
    command += ["--backend", "sim", "--sanitize", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 1, done.stderr
    races = [item for item in facts["findings"] if item["kind"] == "race"]
    assert races and races[0]["file"] == "racy.cu" and races[0]["line"] == 5
    assert "sanitizer: " in done.stdout and "race at racy.cu:5" in done.stdout
