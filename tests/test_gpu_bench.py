"""The benchmarks' own arithmetic, which needs no GPU: coverage, agreement, the order of faults, what leaked."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import replace

from experiments.bench_aa import Pair, Run, summary
from experiments.bench_leaks import FAULTS, Args, Held, _descendants, _leaked, held, order


def test_coverage_counts_every_run_and_widths_those_of_long_kernels() -> None:
    runs = [Run("a", 0.99, 1.01, 50.0, 30, 0.3), Run("a", 1.001, 1.02, 50.0, 30, 0.3)]
    runs += [Run("b", 0.9, 1.1, 5.0, 90, 0.3)] * 2
    found = summary(runs)
    assert (found["runs"], found["holds"], found["coverage"]) == (4, 3, 0.75)
    assert 0.9 < found["half_width_percent_over_20_us"] < 1.1  # type: ignore[operator]
    assert found["kernels"]["a"]["holds"] == "1 of 2"  # type: ignore[index]
    assert len(found["all"]) == 4  # type: ignore[arg-type]


def test_two_measurements_agree_or_do_not() -> None:
    same = Pair("x", (1.50, 1.48, 1.52), (1.51, 1.49, 1.53))
    assert same.overlap and same.z < 1.0
    other = Pair("x", (1.50, 1.48, 1.52), (1.60, 1.58, 1.62))
    assert not other.overlap and other.z > 1.0


def test_faults_come_as_announced_and_never_one_after_another() -> None:
    plan = order(Args())
    counts = Counter(kind for kind in plan if kind is not None)
    assert len(plan) == 1000 and sum(counts.values()) == 100 and set(counts) == set(FAULTS)
    assert counts["hang"] == 10
    assert not any(a is not None and b is not None for a, b in itertools.pairwise(plan))
    assert order(Args()) == plan != order(Args(seed=1))


def test_what_leaked_is_named() -> None:
    clean = Held(3, 20, 1, 100.0, 500.0)
    assert _leaked(clean, clean, []) == []
    assert "processes" in _leaked(clean, replace(clean, processes=4), [])[0]
    assert "GPU memory" in _leaked(clean, replace(clean, gpu_mib=900.0), [])[0]
    series = [vars(replace(clean, descriptors=20 + 5 * i)) for i in range(10)]
    assert "descriptors grew" in _leaked(clean, clean, series)[0]  # type: ignore[arg-type]


def test_grandchildren_and_zombies_are_counted() -> None:
    before = held(None).processes
    child = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '30'])"], start_new_session=True
    )
    try:
        while held(None).processes < before + 2:
            assert child.poll() is None
        assert child.pid in _descendants()
    finally:
        for pid in reversed(_descendants()):
            if pid >= child.pid:
                subprocess.run(["kill", "-9", str(pid)], check=False)
        child.wait()
    assert held(None).processes == before
