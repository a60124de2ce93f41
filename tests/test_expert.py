"""The scripted expert, rounds under one condition, and ``kb ablate``: plumbing, on paper and on the simulator."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from paper import PaperEvaluator
from test_learn import timeless

from experiments import ablate, cli
from experiments.expert_model import Expert, lower, nearest, offers
from experiments.expert_moves import PREDICTIONS, REFUSAL, SCRIPTS, programs
from experiments.rounds import _shuffled
from experiments.run_folder import RunFolder
from kb_env.backends import make_evaluator
from kb_env.edits import BadEdit, apply_edits, parse_action
from kb_env.task import load_task
from kb_env.types import Program, Status, Timing
from memory.entries import Experience
from memory.starter import TECHNIQUES, starter
from memory.store import Memory
from policies.maicrl_answers import read_plan
from policies.maicrl_words import GAP_ROLE, PLAN_ROLE


def asked(role: str, text: str) -> str:
    return Expert()({"messages": [{"role": "system", "content": role}, {"role": "user", "content": text}]})


@pytest.mark.parametrize("task", SCRIPTS)
def test_every_scripted_move_is_offered_and_its_answer_applies(task: str) -> None:
    known = programs(task)
    for start, technique, end in SCRIPTS[task].moves:
        text = known[start]
        assert nearest(task, text) == start and technique in offers(task, text)
        answer = lower(task, text, technique, failed=False)
        if end == REFUSAL:
            assert answer == "submit"
            continue
        assert apply_edits(text, parse_action(answer).edits) == known[end]
    plan = asked(PLAN_ROLE, f"## Task\n{task}: x\n\n## Current program\n```cuda\n{known['initial']}\n```\n")
    assert read_plan(json.loads(plan), set(TECHNIQUES)) and set(PREDICTIONS) <= set(TECHNIQUES)
    with pytest.raises(BadEdit):
        parse_action(asked("another role", f"## Task\n{task}: x"))


@pytest.mark.parametrize("source", ["measured", "modelled"])
def test_the_expert_reads_the_numbers_of_a_gap_analysis(source: str) -> None:
    text = (
        f"- qualifiers in dram+rereads: predicted 2.10 times, {source} 1.01 times (4 verified, 0 failed); "
        f"now believed 2.30 times\n- tiling in latency: predicted 2.00 times, {source} none verified (0 verified, "
        "2 failed); now believed 1.00 times\n- [0123abcd] belief, qualifiers: 3.00 times, by planted\n"
        "- [11111111] belief, tiling in latency: 3.00 times, by starter\n"
    )
    items = json.loads(asked(GAP_ROLE, text))["operations"]
    assert [item["op"] for item in items] == ["adjust", "adjust", "note"]
    assert items[0]["speedup"] == 1.01 and items[0]["replaces"] == ["0123abcd"]


@pytest.mark.slow
@pytest.mark.parametrize("task", SCRIPTS)
def test_the_expert_knows_what_it_says_it_knows(task: str, store: Path) -> None:
    evaluator = make_evaluator("sim", store=store)
    found = {}
    for _, _, end in SCRIPTS[task].moves:
        if end != REFUSAL and end not in found:
            found[end] = evaluator.evaluate(load_task(task), Program(task, programs(task)[end])).status
    evaluator.close()
    for name, status in found.items():
        fails = name.startswith("wrong/") or name == "misspelt"
        assert (status is Status.TIMED) is not fails, (name, status)


def test_maicrl_learns_on_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tasks", "transpose", "--rounds", "2", "--seeds", "1", "--steps", "3", "--json"]
    assert cli.main(["bench", "expert", *words, "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {row["source"] for row in rows} == {"modelled"}
    assert [(row["arm"], row["round"]) for row in rows] == [
        (a, n) for a in ("learning", "outcomes", "control") for n in (0, 1)
    ]
    learning, outcomes, control = rows[1], rows[3], rows[5]
    assert learning["operations"] > 0 and outcomes["operations"] == control["operations"] == 0
    assert sum(row["rejected"] for row in rows[:2]) > 0
    assert control["shift"] < 0.15 < learning["shift"] and control["planted"] > 2.5
    episodes = list(RunFolder(tmp_path).episodes())
    assert len(episodes) == 6 and {step.status for e in episodes for step in e.steps} & {Status.TIMED}
    assert all(episode.source == "modelled" for episode in episodes)


class Priced(PaperEvaluator):
    """On paper, a longer program is slower."""

    def _timing(self, baseline: str, candidate: str, name: str) -> Timing:
        texts = [f"// us: {500 + len(text) % 700}\n{text}" for text in (baseline, candidate)]
        return super()._timing(texts[0], texts[1], name)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablate, "make_evaluator", lambda backend: Priced())


def words(out: Path, *more: str) -> list[str]:
    plan = ["--rounds", "2", "--seeds", "1", "--steps", "3", "--backend", "sim", "--out", str(out), "--json"]
    return ["ablate", *plan, *more]


def test_kb_ablate_with_the_expert_and_without_a_key(
    tmp_path: Path, paper: None, capsys: pytest.CaptureFixture[str]
) -> None:
    expert = ["--expert", "--tasks", "gelu", "--steps", "2"]
    assert cli.main(words(tmp_path / "a", *expert)) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["source"] == "modelled" and said["device"]
    assert {row["policy"] for row in said["rows"]} == set(ablate.ARMS) and said["left_out"] == []
    assert all(item["best"]["pairs"] == item["area"]["pairs"] == 1 for item in said["losses"])
    whole = timeless(tmp_path / "a")
    for path in sorted((tmp_path / "a" / "episodes").iterdir())[::4]:
        path.unlink()
    assert cli.main(words(tmp_path / "a", *expert)) == 2
    assert cli.main(words(tmp_path / "a", *expert, "--resume")) == 0
    assert timeless(tmp_path / "a") == whole
    notes = {label: [] for label in ablate.ARMS}
    for episode in RunFolder(tmp_path / "a").episodes():
        notes[episode.policy.split("@")[0]] += [step.notes for step in episode.steps]
    versions = {
        label: {item["knowledge"] for item in rows if "knowledge" in item} for label, rows in notes.items()
    }
    assert len(versions["no-memory"]) == 1 and len(versions["full"]) == 2


def test_policies_without_a_switch_leave_its_arm_out(
    tmp_path: Path, paper: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(tmp_path, "--policy", "recall", "--tasks", "softmax,gelu")) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["left_out"] == ["no-gradient", "raw-profile"] and len(said["losses"]) == 3


@pytest.mark.parametrize(
    "bad",
    [["--policy", "random"], ["--arms", "no-luck"], ["--rounds", "1"], ["--expert", "--tasks", "conv2d"],
     ["--expert", "--model", "m"]],
)  # fmt: skip
def test_bad_use_is_refused(
    tmp_path: Path, paper: None, bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words(tmp_path, *bad)) == 2
    assert capsys.readouterr().err.startswith("kb: ")


def test_a_shuffled_memory_holds_as_much_that_is_not_so(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m", sync="none")
    blank = Experience(
        "softmax", "softmax", "kb", "float32", "Paper", "modelled", "maicrl", "e", 0, "a", "b", "edit", "tiling",
        "TIMED", 1.0, None, None, 1.0, None, "",
    )  # fmt: skip
    good = [replace(blank, index=n) for n in range(30)]
    bad = [replace(blank, index=n, technique="padding", gain=-1.0) for n in range(30, 60)]
    memory.add([*starter(), *good, *bad])
    told = Memory(_shuffled(tmp_path / "m", tmp_path / "told", 3))
    assert told.info().experiences == 60 and told.info().operations == len(starter())
    gains = sorted(told.experience(row).gain or math.nan for row in range(60))
    assert gains == [-1.0] * 30 + [1.0] * 30
    means = [k.posterior(n, "unknown", "Paper", "modelled").mean
             for k in (memory.knowledge, told.knowledge) for n in ("tiling", "padding")]  # fmt: skip
    assert means[0] > 0.7 and means[1] < -0.5 and abs(means[2]) < 0.5 and abs(means[3]) < 0.5
