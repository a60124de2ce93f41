"""Numbers of a comparison: costs, budgets, intervals, tests, tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper import PaperEvaluator
from scipy import stats
from test_experiments import BEST, BETTER, WORSE, episode

from experiments import cli, compare
from experiments.budgets import Budgeted
from experiments.metrics import (
    area,
    best_against,
    cost,
    difference,
    interquartile_mean,
    sign_flip,
    spent,
    summarize,
    transfer,
)
from experiments.progress import Progress, duration
from experiments.run_folder import RunFolder, lean
from experiments.streams import Conditions, Stream, play_stream
from experiments.tables import library_rows, read_baselines, tables
from kb_env.replay import Recorder
from kb_env.types import Episode, KbError

MOVES = [WORSE, BETTER, BETTER, "gibberish", BEST, "submit"]


def test_every_kind_of_step_is_charged() -> None:
    played = episode(MOVES)
    evaluations = [cost(step)["evaluations"] for step in played.steps]
    # worse: one; better: one and its confirmation; the same again: charged; bad edit: charged; submit: free
    assert evaluations == [1, 2, 1, 1, 2, 0]
    total = spent(played)
    assert total["steps"] == 6 and total["evaluations"] == 7
    assert total["device seconds"] == pytest.approx(0.5 * 5)  # a repeated program takes no device time
    noted = replace(played.steps[0], notes={"prompt_tokens": 30.0, "answer_tokens": 4.0, "money": 0.5})
    assert cost(noted)["tokens"] == 34.0 and cost(noted)["money"] == 0.5


def test_lean_episodes_give_the_same_tables() -> None:
    groups = [[episode(MOVES, "a", s) for s in range(2)], [episode([BEST, "submit"], "a", 3, "gelu")]]
    whole = [item for group in groups for item in group]
    assert summarize("a", whole, 6) == summarize("a", [lean(item) for item in whole], 6)


def test_the_best_by_cost_steps_up_when_it_was_paid_for() -> None:
    curve = best_against(episode(MOVES), "evaluations", [0, 1, 2.9, 3, 6.9, 7, 99])
    assert curve == pytest.approx([1, 1, 1, 2, 2, 5, 5])


def test_valid_and_all_are_told_apart() -> None:
    row = summarize("a", [episode([BETTER, "submit"]), episode(["gibberish", "submit"], task="gelu")], 2)
    assert row.validity == 0.5 and row.geomean_valid == pytest.approx(2.0)
    assert row.geomean == pytest.approx(math.sqrt(2.0))
    assert math.isnan(summarize("a", [episode(["gibberish", "submit"])], 2).geomean_valid)


@pytest.mark.parametrize("count", [1, 3, 4, 7, 100])
def test_the_interquartile_mean_is_the_middle_half(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    exact = np.sort(np.repeat(values, 4))[count : 3 * count].mean()
    assert interquartile_mean(values) == pytest.approx(exact)


def test_sign_flips_agree_with_enumeration_and_with_scipy() -> None:
    rng = np.random.default_rng(3)
    small, large = rng.normal(0.4, 1, 8), rng.normal(0.25, 1, 40)
    for gaps in (small, large):
        found = stats.permutation_test(
            (gaps,), np.mean, permutation_type="samples", n_resamples=20_000, rng=0
        )
        assert sign_flip(gaps) == pytest.approx(found.pvalue, abs=0.015)
    assert sign_flip(np.full(5, 1.0)) == pytest.approx(2 / 32) and sign_flip(np.zeros(4)) == 1.0


def test_differences_know_who_is_better() -> None:
    first = [episode([BEST, "submit"], "a", s, task) for s in range(2) for task in ("softmax", "gelu")]
    second = [episode([BETTER, "submit"], "b", s, task) for s in range(2) for task in ("softmax", "gelu")]
    gap = difference(first, second, ("a", "b"))
    assert gap.better == 1.0 and gap.p == pytest.approx(0.5)  # two tasks: nothing can be told
    assert difference(first, first, ("a", "a")).better == 0.5


def test_transfer_is_the_difference_of_areas() -> None:
    early = [episode([BEST, "submit"], seed=s) for s in range(3)]
    late = [episode([WORSE, WORSE, BEST, "submit"], seed=s) for s in range(5, 8)]
    mean, low, high = transfer(early, late, 4)
    assert mean == pytest.approx(area(early[0], 4) - area(late[0], 4)) and mean > 0
    assert low == pytest.approx(mean) == pytest.approx(high)  # nothing varies between seeds here
    assert math.isnan(transfer(early, [episode([BEST], task="gelu")], 4)[0])


def test_budgets_end_an_episode_and_free_policies_are_bound_by_steps() -> None:
    stream = Stream("random", "random", 0, ("gelu",))
    played = {
        limit: next(iter(play_stream(stream, PaperEvaluator(), Conditions(8, {"evaluations": limit}))))
        for limit in (2.0, 4.0)
    }
    for limit, item in played.items():
        assert item.ended == "submitted" and limit <= spent(item)["evaluations"] <= limit + 1
        assert item.steps[-1].notes["stopped"] == "the budget is spent"
    (free,) = play_stream(stream, PaperEvaluator(), Conditions(3, {"tokens": 10.0}))
    assert free.ended == "steps" and len(free.steps) == 3
    with pytest.raises(KbError, match="no budget 'steps left'"):
        Budgeted(Talker(), {"steps left": 1.0})


class Talker:
    """Says one thing and notes what it cost."""

    name = "talker"

    def begin(self, task: object, rng: object) -> None: ...

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        return f"{BETTER[:-3]}// note {len(history.steps)}\n```"

    def notes(self) -> Mapping[str, float]:
        return {"prompt_tokens": 60.0, "answer_tokens": 40.0, "money": 0.25}

    def learn(self, episodes: Sequence[Episode]) -> None: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


@pytest.mark.parametrize(("limits", "tries"), [({"tokens": 250.0}, 3), ({"money": 0.5}, 2)])
def test_tokens_and_money_are_budgets(limits: dict[str, float], tries: int) -> None:
    stream = Stream("talker", "test_metrics:Talker", 0, ("softmax",))
    (played,) = play_stream(stream, PaperEvaluator(), Conditions(8, limits))
    assert len(played.steps) == tries + 1 and played.ended == "submitted"


def words(out: Path, *more: str) -> list[str]:
    plan = ["--policies", "hillclimb", "--tasks", "softmax,gelu", "--seeds", "2", "--steps", "3"]
    return ["compare", *plan, "--out", str(out), "--json", *more]


def test_a_recorded_comparison_is_replayed_without_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "recording"
    with monkeypatch.context() as patch:
        patch.setattr(compare, "make_evaluator", lambda backend, **_: Recorder(PaperEvaluator(), record))
        assert cli.main(words(tmp_path / "a", "--backend", "sim")) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert cli.main(words(tmp_path / "b", "--backend", f"replay:{record}")) == 0
    assert cli.main(words(tmp_path / "c", "--backend", f"replay:{record}", "--workers", "2")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    for again in lines:
        for mine, other in zip(first["rows"], again["rows"], strict=True):
            assert {k: v for k, v in mine.items() if "seconds" not in k} == {
                k: v for k, v in other.items() if "seconds" not in k
            }


def test_bad_budgets_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words(tmp_path, "--evaluations", "5", "--tokens", "9")) == 2
    assert "one budget is equal in a table" in capsys.readouterr().err
    assert cli.main(words(tmp_path, "--money", "0")) == 2


def test_tables_never_mix_sources_and_library_times_are_measured(tmp_path: Path) -> None:
    played = episode([BETTER, "submit"])
    with pytest.raises(KbError, match="one table"):
        tables([played, replace(played, source="measured")], 2)
    path = tmp_path / "library.json"
    rows = [
        {"task": "softmax", "initial_us": 100.0, "library_us": {"eager": 80.0, "compile": 50.0}},
        {"task": "gelu", "initial_us": 30.0, "library_us": {"eager": 60.0}},
        {"task": "row_sum", "initial_us": None, "library_us": {"eager": 60.0}},
    ]
    path.write_text(json.dumps({"device": "Paper", "rows": rows}))
    with pytest.raises(KbError, match="leave --baselines out"):
        read_baselines(path, "modelled", "Paper")
    with pytest.raises(KbError, match="of Paper"):
        read_baselines(path, "measured", "H200")
    ratios = read_baselines(path, "measured", "Paper")
    assert ratios == {"softmax": {"eager": 1.25, "compile": 2.0}, "gelu": {"eager": 0.5}}
    runs = [episode([BEST, "submit"], "a"), episode(["gibberish", "submit"], "a", task="gelu")]
    (row,) = library_rows(runs, ratios, {"softmax": "kb", "gelu": "kb"})
    assert row.valid_rate == 0.5 and row.geomean_valid == pytest.approx(2.5)
    # The failure scores what the initial program itself does against the library: 60 us over 30 us.
    assert row.geomean == pytest.approx(math.sqrt(2.5 * 2.0)) and row.fast1 == 1.0


def test_progress_counts_and_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    streams = [Stream("a", "a", 0, ("softmax", "gelu")), Stream("b", "b", 0, ("softmax",))]
    with Progress(streams, [episode([BEST], "a")], lambda: [(1.0, 5)]) as progress:
        progress.episode(episode([BETTER], "b"))
        assert progress.count == 2 and progress.total == 3
        assert "a, seed 0, softmax, gelu: why" in progress.failed(streams[0], "why")
        table = progress.table()
    out = capsys.readouterr()
    assert "[2/3] softmax b seed 0: 2.000 modelled (2 steps)" in out.out and "to go" in out.out
    assert "failed:" in out.err and "1 devices" in str(table.caption) and table.row_count == 2
    assert [duration(s) for s in (9.4, 61, 3725)] == ["9 s", "1:01", "1:02:05"]


def test_a_run_folder_with_a_damaged_origin_says_so(tmp_path: Path) -> None:
    (tmp_path / "origin.json").write_text("{}")
    with pytest.raises(KbError, match="delete it"):
        RunFolder(tmp_path).origin()
