"""The interval: coverage, robustness, and what it does with equal values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kb_env.gpu.statistics import BLOCK, block_logs, interval, paired


def _coverage(draw, trials: int, truth: float, pairs: int = 30) -> float:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(trials):
        drift = np.exp(np.cumsum(rng.normal(0, 0.002, pairs)))
        candidate, baseline = 20 * drift * draw(rng, pairs), 20 * truth * drift * draw(rng, pairs)
        hits += paired(candidate, baseline).contains(truth)
    return hits / trials


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: np.exp(rng.normal(0, 0.01, n)),
        lambda rng, n: 1 + rng.lognormal(-5, 1, n),
        lambda rng, n: np.exp(0.01 * rng.standard_t(3, n)),
    ],
    ids=["normal", "lognormal", "heavy-tailed"],
)
def test_interval_covers_the_truth_about_as_often_as_it_says(draw) -> None:
    assert 0.90 <= _coverage(draw, 400, truth=1.3) <= 0.985


def test_one_disturbed_run_in_a_block_changes_little() -> None:
    candidate = [10.0 + 0.01 * (i % 5) for i in range(30)]
    baseline = [20.0 + 0.01 * (i % 7) for i in range(30)]
    clean = paired(candidate, baseline)
    candidate[4] = 400.0
    disturbed = paired(candidate, baseline)
    assert disturbed.speedup == pytest.approx(clean.speedup, rel=2e-3)
    assert clean.low < 2.0 < clean.high * 1.01


def test_equal_times_give_an_interval_no_narrower_than_the_timer() -> None:
    found = paired([10.0] * 30, [10.0] * 30)
    assert found.low < 1.0 < found.high
    assert found.half_width < 0.005


def test_incomplete_blocks_are_left_out() -> None:
    assert len(block_logs([1.0] * (2 * BLOCK + 1), [1.0] * (2 * BLOCK + 1))) == 2


def test_same_values_same_interval_and_a_higher_level_is_wider() -> None:
    logs = np.random.default_rng(0).normal(0.1, 0.02, 12)
    assert interval(logs) == interval(logs)
    assert interval(logs, level=0.99).half_width > interval(logs, level=0.95).half_width
    assert math.log(interval(logs).speedup) == pytest.approx(float(np.mean(logs)))
