"""Rounds of learning: frozen snapshots, held-out families, the same end after a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments import cli, learn
from experiments.run_folder import RunFolder
from kb_env.records import pack
from memory.store import Memory


def words(out: Path, *more: str) -> list[str]:
    plan = ["--tasks", "softmax,gelu,row_sum", "--rounds", "2", "--seeds", "2"]
    return ["learn", *plan, "--steps", "3", "--backend", "sim", "--out", str(out), "--json", *more]


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "make_evaluator", lambda backend: PaperEvaluator())


def timeless(out: Path) -> dict[tuple[str, str, int], bytes]:
    return {
        (e.task, e.policy, e.seed): pack(replace(e, steps=tuple(replace(s, seconds={}) for s in e.steps)))
        for e in RunFolder(out).episodes()
    }


def test_rounds_resume_to_the_same_end_and_never_learn_held_out_families(
    tmp_path: Path, paper: None, capsys: pytest.CaptureFixture[str]
) -> None:
    family = learn.load_task("gelu").family
    first, second = tmp_path / "a", tmp_path / "b"
    extra = ("--held-out", family)
    assert cli.main(words(first, *extra)) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    rounds = said["rounds"]
    assert (said["source"], said["device"]) == (PaperEvaluator().source, "Paper")
    assert len(rounds) == 2 and all(row["held_out"] and row["entries_added"] > 0 for row in rounds)
    assert cli.main(words(second, *extra)) == 0
    whole = timeless(first)
    assert len(whole) == 2 * 2 * 3 and timeless(second) == whole
    for path in list((second / "episodes").iterdir())[::3]:
        path.unlink()
    assert cli.main(words(second, *extra)) == 2
    assert cli.main(words(second, *extra, "--resume")) == 0
    assert timeless(second) == whole
    memory = Memory(first / "memory")
    try:
        assert memory.info().experiences == sum(row["entries_added"] for row in rounds)
        tasks = {memory.experience(row).task for row in range(memory.info().experiences)}
        assert tasks == {"softmax", "row_sum"}
    finally:
        memory.close()


def test_a_task_named_twice_is_played_once(tmp_path: Path, paper: None) -> None:
    assert cli.main(words(tmp_path, "--tasks", "gelu,gelu")) == 0
    assert len(timeless(tmp_path)) == 2 * 2


def test_a_stream_is_set_against_no_past(
    tmp_path: Path, paper: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(tmp_path, "--stream")) == 0
    stream = json.loads(capsys.readouterr().out.splitlines()[-1])["stream"]
    # The first task of a stream has no past: it equals its control, and that is shown.
    assert stream["first"]["mean"] == pytest.approx(0.0) and stream["first"]["episodes"] == 2
    assert stream["after the first task"]["episodes"] == 4
    labels = {episode.policy for episode in RunFolder(tmp_path).episodes()}
    assert labels == {"recall@stream", "recall@control"}
    assert not (tmp_path / "memory").exists()


def test_transfer_to_another_device_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        learn, "make_evaluator", lambda backend: PaperEvaluator(device="A" if "A100" in backend else "H")
    )
    more = ("--backend", "sim:A100", "--transfer-to", "sim:H200")
    plain = [word for word in words(tmp_path) if word not in ("--backend", "sim")]
    assert cli.main([*plain, *more]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["transfer_to"]
    assert found["device"] == "H" and found["episodes"] == 6
    assert {e.device for e in RunFolder(tmp_path).episodes()} == {"A"}
    assert {e.device for e in RunFolder(tmp_path / "transfer").episodes()} == {"H"}
    assert cli.main([*plain, *more, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["transfer_to"] == found


@pytest.mark.parametrize(
    "bad",
    [
        ["--rounds", "0"],
        ["--policy", "random"],
        ["--held-out", "nothing"],
        ["--stream", "--transfer-to", "sim:A100"],
    ],
)
def test_bad_use_is_refused(
    tmp_path: Path, paper: None, bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(tmp_path, *bad)) == 2
    assert capsys.readouterr().err.startswith("kb: ")
