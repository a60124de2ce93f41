"""The kb command, run folders, streams, comparison and metrics, without compiler or GPU."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper import PaperEvaluator

from experiments import cli, compare, report
from experiments.metrics import best_so_far, bootstrap, difference, summarize
from experiments.rollout import play
from experiments.run_folder import RunFolder, episode_name
from experiments.streams import Conditions, Stream, plan, play_stream
from kb_env.env import CudaEnv
from kb_env.files import write_atomic
from kb_env.records import pack
from kb_env.task import load_task
from kb_env.types import Episode, KbError
from policies.policy import make_policy

WORSE, BETTER, BEST = (f"```cuda\n// us: {us}\nvoid launch();\n```" for us in (2000, 500, 200))


def episode(actions: Sequence[str], policy: str = "script", seed: int = 0, task: str = "softmax") -> Episode:
    """An episode on paper that plays the actions given."""
    env = CudaEnv(task=task, evaluator=PaperEvaluator(), max_steps=10, evaluate_on_reset=True)
    player = make_policy("script", actions=tuple(actions))
    return play(env, player, load_task(task), seed, label=policy)


def test_usage_lists_every_command_and_unknown_ones_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2 and cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"kb {name}" in out for name in cli.COMMANDS)
    assert cli.main(["frobnicate"]) == 2
    assert "kb --help" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_is_a_module_with_arguments_and_main(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(cli.COMMANDS[name][0])
    assert module.Args and callable(module.main)
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0 and f"usage: kb {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["check", "no_such_task", "x.cu"],
        ["check", "softmax", "/nonexistent.cu", "--backend", "sim"],
        ["run", "softmax", "--policy", "nope"],
        ["run", "softmax", "--backend", "quantum"],
        ["report", "/nonexistent"],
        ["memory", "info", "/nonexistent"],
        ["compare", "--seeds", "0", "--out", "/tmp/never-made"],
    ],
)
def test_bad_use_is_one_line_and_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("kb: ") and err.count("\n") == 1


def test_a_run_folder_keeps_the_last_whole_episode(tmp_path: Path) -> None:
    folder, played = RunFolder(tmp_path), episode([BETTER, "submit"])
    folder.finish(played)
    name = episode_name("softmax", "script", 0)
    loaded = folder.load(name)
    assert loaded is not None and pack(loaded) == pack(played)
    assert [pack(item) for item in folder.episodes()] == [pack(played)]
    assert (tmp_path / "best" / f"{name}.cu").read_text() == played.best.text
    assert "-// Row softmax" in (tmp_path / "best" / f"{name}.diff").read_text()
    folder.save(replace(played, ended="running"))
    assert folder.load(name) is None
    path = tmp_path / "episodes" / f"{name}.msgpack"
    path.write_bytes(pack(played)[:-3])
    assert folder.load(name) is None
    with pytest.raises(KbError, match="delete it"):
        list(folder.episodes())
    with pytest.raises(KbError, match="cannot write"):
        write_atomic(Path("/proc/nope/x"), b"")


def test_the_report_shows_each_step_and_escapes_candidate_text(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin({"args": {"task": "softmax"}})
    evil = "```cuda\n// us: 400\n// <script>alert(1)</script>\nvoid launch();\n```"
    folder.finish(episode([WORSE, evil, "gibberish", "submit"]))
    page = report.write_report(folder).read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "time modelled" in page and "BAD_EDIT" in page and "2.500" in page
    rows = json.loads((tmp_path / "summary.json").read_text())["episodes"]
    assert rows[0]["best"] == pytest.approx(2.5) and rows[0]["steps"] == 4


def test_streams_of_a_remembering_policy_are_resumed_to_the_same_end() -> None:
    stream = Stream("recall", "recall", 3, ("softmax", "vector_add", "gelu"), True)
    conditions = Conditions(steps=3)
    whole = list(play_stream(stream, PaperEvaluator(), conditions))
    assert [item.task for item in whole] == list(stream.tasks)
    for cut in (1, 2):
        rest = list(play_stream(stream, PaperEvaluator(), conditions, whole[:cut]))
        assert [_timeless(item) for item in rest] == [_timeless(item) for item in whole[cut:]]


def _timeless(item: Episode) -> bytes:
    return pack(replace(item, steps=tuple(replace(step, seconds={}) for step in item.steps)))


def test_a_plan_covers_every_episode_once_and_shuffles_only_remembering_streams() -> None:
    tasks = ("a", "b", "c", "d")
    streams = plan(["random", "recall"], tasks, range(3))
    names = [name for stream in streams for name in stream.names]
    assert len(names) == len(set(names)) == 24
    orders = {stream.tasks for stream in streams if stream.remembers}
    assert len(orders) > 1 and all(sorted(order) == list(tasks) for order in orders)
    assert plan(["random", "recall"], tasks, range(3)) == streams


def test_compare_runs_resumes_and_refuses_another_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "make_evaluator", lambda backend, **_: PaperEvaluator())
    out = tmp_path / "run"
    words = ["compare", "--policies", "hillclimb", "--tasks", "softmax,gelu", "--seeds", "2", "--steps", "2"]
    words += ["--backend", "sim", "--out", str(out), "--json"]
    assert cli.main(words) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert first["source"] and first["device"]
    assert first["episodes"] == 8 and {row["policy"] for row in first["rows"]} == {"random", "hillclimb"}
    assert cli.main(words) == 2 and "--resume" in capsys.readouterr().err
    kept = {path.name: path.read_bytes() for path in (out / "episodes").iterdir()}
    victim = sorted(kept)[2]
    (out / "episodes" / victim).unlink()
    assert cli.main([*words, "--resume"]) == 0
    again = {path.name: path for path in (out / "episodes").iterdir()}
    assert set(again) == set(kept)
    assert all(again[name].read_bytes() == data for name, data in kept.items() if name != victim)
    assert cli.main([*words, "--resume", "--steps", "3"]) == 2


def test_summary_counts_failures_and_never_drops_a_task() -> None:
    runs = [episode([BETTER, "submit"]), episode(["gibberish", "submit"], task="gelu")]
    row = summarize("script", runs, 4)
    assert row.geomean == pytest.approx(math.sqrt(2.0)) and row.tasks == 2 and row.improved == 0.5
    assert row.valid == 0.5 and row.fast15 == 0.5
    assert list(best_so_far(runs[0], 4)) == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0])


def test_differences_are_paired_by_task_and_seed() -> None:
    first = [episode([BEST, "submit"], "a", seed) for seed in range(3)]
    second = [episode([BETTER, "submit"], "b", seed) for seed in (0, 1, 7)]
    gap = difference(first, second, ("a", "b"))
    assert gap.pairs == 2 and gap.mean == pytest.approx(math.log(2.5)) and gap.low == pytest.approx(gap.high)
    assert math.isnan(difference(first, [], ("a", "b")).mean)


@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_interval_stays_within_the_data(rows: list[list[float]]) -> None:
    point, low, high = bootstrap({str(i): np.array(row) for i, row in enumerate(rows)}, rounds=200)
    if all(len(set(row)) == 1 for row in rows):
        assert low == pytest.approx(point) == pytest.approx(high)
    assert min(map(min, rows)) - 1e-9 <= low <= high <= max(map(max, rows)) + 1e-9
