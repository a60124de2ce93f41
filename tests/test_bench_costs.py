"""Costs of episodes: what was counted, by policy and part, from real requests to a local server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments import bench_costs, cli
from experiments.run_folder import RunFolder
from kb_env.task import load_task
from policies.budget import Prices
from policies.fitting import numbered, tokens_of
from policies.render import ANSWER_FORMAT, ROLE


def test_costs_by_part_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_costs, "make_evaluator", lambda backend: PaperEvaluator())
    words = ["bench", "costs", "--tasks", "softmax,transpose", "--steps", "3", "--prices", "2,10", "--json"]
    assert cli.main([*words, "--backend", "sim"]) == 0
    out = capsys.readouterr().out
    rows = {row["policy"]: row for row in json.loads(out.splitlines()[-1])["rows"]}
    assert rows.keys() == {"oneshot", "refine", "evolve", "maicrl"} and "Current program" in out
    for row in rows.values():
        assert row["episodes"] == 2 and row["requests"] >= 3.0
        assert row["money"] == pytest.approx((row["prompt_tokens"] * 2 + row["answer_tokens"] * 10) / 1e6)
        # the scripted server counts as prompts are planned: what remains are the messages' seams
        assert sum(row["parts"].values()) == pytest.approx(row["prompt_tokens"], rel=0.02)
        assert row["parts"]["Instructions"] >= 3 * (tokens_of(ROLE) + tokens_of(ANSWER_FORMAT))
    sources = [tokens_of(numbered(load_task(name).source)) for name in ("softmax", "transpose")]
    assert rows["oneshot"]["parts"]["Current program"] == pytest.approx(3 * sum(sources) / 2, rel=0.05)


def test_a_run_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_costs, "make_evaluator", lambda backend: PaperEvaluator())
    folder = RunFolder(tmp_path)
    episodes = bench_costs.play(bench_costs.Args(policies="refine,hillclimb", tasks="softmax", steps=2))
    for episode in episodes:
        folder.finish(episode)
    assert [row.policy for row in bench_costs.costs(folder.episodes(), Prices(1.0))] == ["refine"]
    assert cli.main(["bench", "costs", str(tmp_path)]) == 0
