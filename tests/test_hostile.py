"""Hostile input through the whole environment; ``python -m experiments.bench_hostile`` plays all of it."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench_hostile import TASK, cases, program, sweep
from kb_env import build as build_module
from kb_env.env import CudaEnv
from kb_env.sim.evaluator import SimEvaluator

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

QUICK = (
    "truncated block", "10 MB action", "binary garbage", "file includes itself", "include /proc/self/environ",
    "compiler's flood of errors", "launcher exits", "launcher kills its parent", "kernel writes one past the end",
)  # fmt: skip


def test_each_has_a_clear_status_and_leaves_nothing(tmp_path: Path) -> None:
    chosen = [case for case in cases() if case.name in QUICK]
    assert len(chosen) == len(QUICK)
    assert sweep(chosen, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_slow_ones_too(tmp_path: Path) -> None:
    words = ("sleeps", "forks", "loops for ever", "waits for ever", "flood", "macro", "recurses")
    chosen = [case for case in cases() if case.name not in QUICK and any(word in case.name for word in words)]
    assert sweep(chosen, tmp_path) == []


def test_a_missing_compiler_is_one_line_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "_candidates", list)
    build_module.toolchain.cache_clear()
    try:
        with SimEvaluator(store=tmp_path) as evaluator:
            env = CudaEnv(TASK, evaluator=evaluator)
            env.reset(seed=0)
            observation, reward, terminated, truncated, _ = env.step(program())
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert "no CUDA compiler: pip install" in observation["feedback"]
        assert "\n" not in observation["feedback"]
    finally:
        monkeypatch.undo()
        build_module.toolchain.cache_clear()


FULL = """
import resource, sys
from experiments.bench_hostile import TASK, program
from kb_env.env import CudaEnv
from kb_env.sim.evaluator import SimEvaluator
with SimEvaluator(store=sys.argv[1]) as evaluator:
    env = CudaEnv(TASK, evaluator=evaluator)
    env.reset(seed=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    feedback, reward, _, truncated = env.step(program())[:4]
    print(repr((feedback["feedback"], reward, truncated)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    env.reset(seed=0)
    print(env.step(program())[0]["feedback"].split(",")[0])
"""


def test_a_disk_that_takes_no_more_ends_the_episode_and_the_next_one_works(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # Python's own: writes fail with EFBIG
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
    command = [sys.executable, "-c", FULL, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    feedback, reward, truncated = eval(first)  # our own script's repr
    assert (reward, truncated) == (0.0, True), feedback
    assert "\n" not in feedback
    assert second == "TIMED"
