"""The textual gradient: what is kept, what is rejected, what can be taken back; rounds with ``kb learn``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import PaperEvaluator
from test_knowledge import answers
from test_maicrl import TASK, Model, code, plan, policy, run, timeless

from experiments import cli, learn
from experiments.run_folder import RunFolder
from experiments.scripted_server import Reply, ScriptedServer
from kb_env.types import Episode, KbError
from memory.entries import Experience, Holdout, Operation
from memory.knowledge import Knowledge
from memory.starter import starter
from memory.store import Memory, episode_key
from policies.chat import Limits
from policies.maicrl_evaluation import evaluate, extremes, split_steps
from policies.maicrl_gradient import revert, try_out, updates
from policies.maicrl_updates import Context, read_signature, read_update

WRONG = Operation("belief", "tiling", signature="latency", value=1.5, weight=4.0, author="planted")


def operation(op: str, **more: Any) -> dict[str, Any]:
    empty = {"technique": "", "signature": "", "into": "", "speedup": None, "text": "", "replaces": []}
    return {"op": op, **empty, **more}


def update(*items: dict[str, Any]) -> str:
    return json.dumps({"operations": items})


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()
    found.plans = [plan(("tiling", 3.0), ("staging", 1.3))]
    found.codes = [code(us) for us in (1000, 990, 980, 985, 990, 995, 1000)]
    yield found


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with ScriptedServer(model) as server:
        yield server.url


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    found = Memory(tmp_path / "memory", sync="none")
    found.add([*starter(), WRONG])
    yield found
    found.close()


def played(url: str, memory: Memory, count: int = 2) -> list[Episode]:
    """Episodes in which no technique gains anything, remembered."""
    found = []
    for seed in range(count):
        found.append(run(policy(url, memory, trajectories=1), steps=6, seed=seed))
        memory.learn(found[-1], TASK, now=0.0)
    return found


def test_what_predicts_later_steps_better_is_kept_and_what_does_worse_rejected(
    model: Model, url: str, memory: Memory
) -> None:
    episodes = played(url, memory)
    model.gaps = [
        update(
            operation("retract", replaces=[WRONG.id[:8]]),
            operation("adjust", technique="tiling", signature="latency", speedup=8.0),
            operation("adjust", technique="tiling", signature="latency", speedup=1.0),
            operation("note", technique="tiling", signature="latency", text="Tiling gains nothing here."),
            operation("add", technique="cluster launch", text="Let blocks share memory."),
        )
    ]
    before = memory.knowledge.posterior("tiling", "latency", "Paper", "modelled").mean
    policy(url, memory).learn(episodes)
    knowledge = memory.knowledge
    (record,) = updates(knowledge)
    facts = json.loads(record.text)
    assert facts["after"] > facts["before"] and facts["tested"] == 4 and len(facts["rejected"]) == 1
    assert all(abs(value) < 0.1 for value in facts["worth"])  # nothing gained, and nothing is promised
    refused = [item for item in knowledge.history() if item.kind == "rejected"]
    assert len(refused) == 1 and json.loads(refused[0].text)["value"] == pytest.approx(math.log(8))
    assert WRONG not in knowledge.live("belief") and "cluster launch" in knowledge.techniques
    assert [item.text for item in knowledge.notes("tiling", "latency")] == ["Tiling gains nothing here."]
    assert knowledge.posterior("tiling", "latency", "Paper", "modelled").mean < before - 0.2
    prompt = model.prompts("gap")[0]
    assert "predicted" in prompt and f"[{WRONG.id[:8]}]" in prompt and "Cases that came out worst" in prompt
    assert "us: 990" in prompt  # the changes themselves
    assert "times, modelled " in prompt and "times, measured " not in prompt  # PaperEvaluator's times
    # All of it from the log alone.
    assert answers(Memory(memory.folder).knowledge) == answers(knowledge)


def test_an_update_can_be_taken_back(
    model: Model, url: str, memory: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = played(url, memory)
    said = answers(memory.knowledge)
    model.gaps = [
        update(operation("retract", replaces=[WRONG.id[:8]]), operation("note", text="Nothing helps."))
    ]
    policy(url, memory).learn(episodes)
    assert answers(memory.knowledge) != said
    with pytest.raises(KbError, match="no update is called 'update 7'"):
        revert(memory, "update 7")
    memory.close()
    assert cli.main(["memory", "updates", str(memory.folder)]) == 0
    text = capsys.readouterr().out
    assert "2 operations kept, 2 of them hold, 0 rejected" in text and "of later draws" in text
    assert cli.main(["memory", "revert", str(memory.folder), "update 1"]) == 0
    assert answers(Memory(memory.folder).knowledge) == said
    # It stays taken back for a reader with a hold-out that hides none of it.
    assert not Memory(memory.folder, holdout=Holdout(families=("matmul",))).knowledge.notes()
    assert cli.main(["memory", "revert", str(memory.folder)]) == 2


def test_what_a_kill_leaves_of_an_update_can_be_taken_back(model: Model, url: str, memory: Memory) -> None:
    episodes = played(url, memory)
    said, before = answers(memory.knowledge), len(list(memory.entries()))
    model.gaps = [
        update(
            operation("retract", replaces=[WRONG.id[:8]]),
            operation("note", text="Nothing helps."),
            operation("add", technique="cluster launch", text="Let blocks share memory."),
        )
    ]
    policy(url, memory).learn(episodes)
    memory.close()
    assert answers(memory.knowledge) != said
    frames = [position for position, _ in memory.log.scan()][before:]
    (segment,) = memory.log.segments()
    changed = 0
    for frame in reversed(frames):  # the file as it is after a kill in the middle of each frame
        os.truncate(segment.path, frame.offset + 20)
        (memory.folder / "index.json").unlink(missing_ok=True)
        with Memory(memory.folder, sync="none") as left:
            changed += answers(left.knowledge) != said
            if updates(left.knowledge):
                revert(left, "update 1")
            assert answers(left.knowledge) == said
    assert len(frames) == 4 and changed == 2


def test_what_a_round_taught_names_all_its_episodes(model: Model, url: str, memory: Memory) -> None:
    episodes = played(url, memory, 18)
    model.gaps = [update(operation("note", text="Nothing helps."))]
    policy(url, memory).learn(episodes)
    (note,) = memory.knowledge.notes()
    assert set(note.provenance) == {episode_key(episode) for episode in episodes}
    hidden = Holdout(episodes=(episode_key(episodes[-1]),))
    assert not Memory(memory.folder, holdout=hidden).knowledge.notes()


@pytest.mark.parametrize(
    "said",
    [
        "I would rather not.",
        Reply('{"operations": [{"op"', "length"),
        '{"operations": {}}',
        update(operation("delete everything")),
        update(operation("adjust", technique="tiling", signature="moon", speedup=1.0)),
        update(operation("adjust", technique="tiling", speedup=1e9)),
        update(operation("retract", replaces=["ffffffff"])),
        update(operation("note", technique="tiling")),
        update(operation("merge", technique="tiling", into="tiling")),
        update(operation("split", technique="tiling", into="latency tiling", text="as tiling")),
        update(operation("add", technique="tiling", text="again")),
    ],
)
def test_what_cannot_be_used_changes_nothing(
    model: Model, url: str, memory: Memory, said: Reply | str
) -> None:
    episodes = played(url, memory, 1)
    before = answers(memory.knowledge)
    model.gaps = [said]
    policy(url, memory).learn(episodes)
    assert len(model.prompts("gap")) == 2 and "cannot be used" in model.prompts("gap")[1]
    assert answers(memory.knowledge) == before and len(updates(memory.knowledge)) == 1


def test_nothing_is_learned_where_nothing_may_be(model: Model, url: str, memory: Memory) -> None:
    episodes = played(url, memory, 1)
    model.asked.clear()
    policy(url).learn(episodes)
    off = policy(url, memory)
    off.gradient = False
    off.learn(episodes)
    policy(url, Memory(memory.folder, frozen=True)).learn(episodes)
    assert not model.asked and not updates(memory.knowledge)
    policy(url, memory, limits=Limits(requests=0)).learn(episodes)
    assert not model.asked and "budget" in json.loads(updates(memory.knowledge)[0].text)["fault"]


def test_made_up_techniques_are_defined_by_the_round(model: Model, url: str, memory: Memory) -> None:
    model.plans = [plan(("warp magic", 2.0, "Do it by warps."))]
    policy(url, memory).learn(played(url, memory, 1))
    assert memory.knowledge.guidance("warp magic") == "Do it by warps."
    assert memory.knowledge.posterior("warp magic", "latency", "Paper", "modelled").count == 6


def outcomes(gains: list[float | None], technique: str = "tiling") -> list[Experience]:
    blank = Experience(
        "softmax", "softmax", "kb", "float32", "Paper", "modelled", "maicrl", "e", 0, "a", "b", "edit", technique,
        "TIMED", 0.0, None, None, 1.0, None, "", predicted=0.4,
    )  # fmt: skip
    return [
        replace(blank, index=n, gain=gain, status="WRONG" if gain is None else "TIMED")
        for n, gain in enumerate(gains)
    ]


def test_evaluation_and_cases_come_from_the_numbers() -> None:
    items = [*outcomes([0.0, 0.1, None]), *outcomes([0.4, 0.4], "staging")]
    misses = evaluate(items, Knowledge())
    assert [(m.technique, m.count, m.failures) for m in misses] == [("tiling", 2, 1), ("staging", 2, 0)]
    assert misses[0].predicted == pytest.approx(0.4) and misses[0].found == pytest.approx(0.05)
    worst, best = extremes(items)
    assert worst[0].gain is None and best[0].gain == 0.4 and not {i.id for i in worst} & {i.id for i in best}
    shown, later = split_steps(outcomes([0.1] * 6))
    assert [i.index for i in shown] == [0, 1, 2, 3] and [i.index for i in later] == [4, 5]


def test_without_later_steps_no_prediction_is_changed() -> None:
    note, belief = Operation("note", "tiling", "text"), Operation("belief", "tiling", value=0.1, weight=1.0)
    found = try_out([[note], [belief]], Knowledge(), [])
    assert found.kept == (note,) and found.rejected[0].kind == "rejected"
    # Nor by what no later step is about; but notes can be taken back without a test.
    elsewhere = Operation("belief", "padding", value=0.1, weight=1.0)
    undo = Operation("retract", "", replaces=(note.id,))
    knowledge = Knowledge()
    knowledge.add([note, belief])
    wrong = Operation("note", "tiling", "other", replaces=(belief.id,))
    found = try_out([[elsewhere], [undo], [wrong]], knowledge, outcomes([0.1, 0.1]))
    assert found.kept == (undo,) and len(found.rejected) == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 2), min_size=1, max_size=6), st.lists(st.floats(-2, 2), max_size=6))
def test_the_score_never_falls_and_a_rejected_update_leaves_no_trace(
    gains: list[float], values: list[float]
) -> None:
    later = outcomes(list(gains))
    beliefs = [
        Operation("belief", "tiling", value=v, weight=2.0, time=float(n)) for n, v in enumerate(values)
    ]
    found = try_out([[item] for item in beliefs], Knowledge(), later)
    assert found.after >= found.before and len(found.kept) + len(found.rejected) == len(
        {b.id for b in beliefs}
    )
    one, two = Knowledge(), Knowledge()
    one.add([*later, *found.kept])
    two.add([*later, *found.kept, *found.rejected])
    assert answers(one) == answers(two)
    assert found.after == pytest.approx(_scored(found.kept, later))


def _scored(kept: tuple[Operation, ...], later: list[Experience]) -> float:
    knowledge = Knowledge()
    knowledge.add(kept)
    return knowledge.log_score(later)


FIELDS = st.sampled_from(["op", "technique", "signature", "into", "speedup", "text", "replaces"])
VALUES = (
    st.none() | st.integers() | st.floats() | st.lists(st.text(max_size=8), max_size=2)
    | st.sampled_from(["adjust", "add", "split", "merge", "note", "retract", "tiling", "fusion", "dram", "x y", ""])
)  # fmt: skip


STARTED = Knowledge()
STARTED.add(starter())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(FIELDS, VALUES), max_size=4), st.booleans())
def test_any_answer_is_an_update_or_a_value_error(items: list[dict[str, Any]], strict: bool) -> None:
    context = Context.of(STARTED, "H200", "modelled", 1, ("e",))
    try:
        found = read_update({"operations": items}, context, strict)
    except ValueError:
        return
    for group in found:
        for item in group:
            assert item.author == "gradient 1" and abs(item.value) < 4.7 and "\n" not in item.text
    knowledge = Knowledge()
    knowledge.add(item for group in found for item in group)
    knowledge.rank("dram", "H200", "modelled")


def test_split_and_merge_are_read() -> None:
    knowledge = Knowledge()
    knowledge.add(starter())
    context = Context.of(knowledge, "H200", "modelled", 1, ())
    items = [
        operation(
            "split", technique="tiling", signature="issue+rereads", into="deep tiling", text="Tile twice."
        ),
        operation("merge", technique="read-only loads", into="qualifiers"),
    ]
    knowledge.add(item for group in read_update({"operations": items}, context) for item in group)
    assert (
        knowledge.resolve("tiling", "issue+rereads") == "deep tiling"
        and knowledge.resolve("tiling") == "tiling"
    )
    assert knowledge.resolve("read-only loads") == "qualifiers"
    assert (
        read_signature("dram+rereads+uncoalesced") == "dram+uncoalesced+rereads" and read_signature(" ") == ""
    )


def words(out: Path, *more: str) -> list[str]:
    return [
        "learn", "--policy", "maicrl", "--tasks", "softmax,row_sum", "--rounds", "2", "--seeds", "1", "--steps", "4",
        "--backend", "sim", "--model", "scripted", "--starter", "--out", str(out), "--json", *more,
    ]  # fmt: skip


def test_kb_learn_runs_maicrl_and_resumes_to_the_same_end(
    model: Model,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(learn, "make_evaluator", lambda backend: PaperEvaluator())
    model.codes = [lambda prompt: code(600 if "us: 800" in prompt else 800)]
    model.gaps = [update(operation("note", technique="tiling", text="It works."))]
    assert cli.main(words(tmp_path / "a", "--base-url", url)) == 0
    rounds = json.loads(capsys.readouterr().out.splitlines()[-1])["rounds"]
    assert [row["operations"] for row in rounds] == [1, 1] and len(model.prompts("gap")) == 2
    assert "It works." in model.prompts("plan")[-1] and "It works." not in model.prompts("plan")[0]
    whole = {e.task: list(map(timeless, e.steps)) for e in RunFolder(tmp_path / "a").episodes()}
    said = answers(Memory(tmp_path / "a" / "memory").knowledge)
    for path in (tmp_path / "a" / "episodes").glob("row_sum*"):
        path.unlink()
    model.gaps = ["never asked again"]
    assert cli.main(words(tmp_path / "a", "--base-url", url, "--resume")) == 0
    assert len(model.prompts("gap")) == 2
    assert {e.task: list(map(timeless, e.steps)) for e in RunFolder(tmp_path / "a").episodes()} == whole
    assert answers(Memory(tmp_path / "a" / "memory").knowledge) == said


def test_raw_profiles_stay_raw_in_every_prompt(model: Model, url: str, memory: Memory) -> None:
    found = policy(url, memory)
    found.raw_profile = True
    episode = run(found, steps=2)
    memory.learn(episode, TASK, now=0.0)
    found.learn([episode])
    assert [kind for kind, _ in model.asked] == ["plan", "code", "plan", "code", "gap"]
    for kind, prompt in model.asked:
        assert "dram_percent=50" in prompt and "Signature" not in prompt, kind
