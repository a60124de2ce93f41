"""Operations on the knowledge base: rebuilt from the log alone, reversible, measured and modelled apart."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory import DRAM, IDLE, experience, filled

from experiments import cli
from memory.entries import Experience, Operation
from memory.knowledge import Knowledge
from memory.operations import Operations
from memory.signature import signature
from memory.starter import starter
from memory.store import Memory

NAMES = ("tiling", "padding", "vectorization", "new idea")
HELD = (signature(DRAM), signature(IDLE), "dram", "")


def answers(knowledge: Knowledge) -> object:
    """Everything it says: beliefs in every place, notes, names, guidance."""
    places = [(h, d, s) for h in HELD for d in ("H200", "A100") for s in ("modelled", "measured")]
    beliefs = [knowledge.posterior(name, *place) for name in NAMES for place in places]
    notes = [[n.id for n in knowledge.notes(name, held)] for name in NAMES for held in HELD]
    return beliefs, notes, knowledge.techniques, [knowledge.guidance(n) for n in NAMES], knowledge.version


@st.composite
def histories(draw: st.DrawFn) -> list[Experience | Operation]:
    """Outcomes and operations, some replacing others, in the order they were made."""
    made: list[Experience | Operation] = []
    names, held = st.sampled_from(NAMES), st.sampled_from(HELD)
    for number in range(draw(st.integers(2, 14))):
        if draw(st.booleans()):
            _, item = experience(number, technique=draw(names), episode=f"e{number}")
            failed = draw(st.booleans())
            change = {"gain": None, "status": "WRONG"} if failed else {"gain": draw(st.floats(-1, 2))}
            made.append(replace(item, source=draw(st.sampled_from(("modelled", "measured"))), **change))
            continue
        kind = draw(
            st.sampled_from(("technique", "belief", "alias", "note", "retract", "rejected", "update"))
        )
        earlier = [item.id for item in made if isinstance(item, Operation)]
        targets = draw(st.sets(st.sampled_from(earlier), max_size=3)) if earlier else set()
        value, weight = draw(st.floats(-1, 1)), draw(st.floats(0.1, 3.0))
        text = draw(names) if kind == "alias" else f"text {number}"
        made.append(
            Operation(kind, draw(names), text, draw(held), "", value, weight, tuple(sorted(targets)), time=number)
        )  # fmt: skip
    return made


@settings(max_examples=20, deadline=None)
@given(histories(), st.integers(0, 99))
def test_it_is_rebuilt_from_the_log_alone_to_equality(
    tmp_path_factory: pytest.TempPathFactory, made: list[Experience | Operation], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("m")
    memory = Memory(folder, sync="none")
    for item in made:  # one at a time, asked in between: caches must not matter
        memory.add([item])
        answers(memory.knowledge)
    said = answers(memory.knowledge)
    memory.close()
    assert answers(Memory(folder).knowledge) == said
    shuffled = Knowledge()
    for item in random.Random(seed).sample(made, len(made)):
        shuffled.add([item, item])
    assert answers(shuffled) == said


@settings(max_examples=25, deadline=None)
@given(histories())
def test_reverting_the_last_operations_restores_what_was_said(made: list[Experience | Operation]) -> None:
    operations = [item for item in made if isinstance(item, Operation)]
    for cut in range(len(operations) + 1):
        before, after = Knowledge(), Knowledge()
        outcomes = [item for item in made if isinstance(item, Experience)]
        before.add([*outcomes, *operations[:cut]])
        after.add([*outcomes, *operations])
        undone = tuple(item.id for item in operations[cut:])
        after.add([Operation("retract", "", replaces=undone, time=99.0)])
        assert answers(after) == answers(before)


@settings(max_examples=25, deadline=None)
@given(histories())
def test_what_was_rejected_leaves_no_trace(made: list[Experience | Operation]) -> None:
    with_them, without = Knowledge(), Knowledge()
    with_them.add(made)
    without.add(i for i in made if not isinstance(i, Operation) or i.kind not in ("rejected", "update"))
    assert answers(with_them) == answers(without)


def test_a_retraction_can_itself_be_retracted() -> None:
    first = Operation("note", "tiling", "old", time=1.0)
    second = Operation("note", "tiling", "new", replaces=(first.id,), time=2.0)
    undo = Operation("retract", "", replaces=(second.id,), time=3.0)
    redo = Operation("retract", "", replaces=(undo.id,), time=4.0)
    for known, text in (([first, second], "new"), ([first, second, undo], "old")):
        found = Operations()
        for item in (*known, *([redo] if len(known) == 3 else [])):
            found.add(item)
        assert [item.text for item in found.live("note")] == ["new" if len(known) == 3 else text]
    found = Operations()
    for item in (first, second, undo):
        found.add(item)
    assert [item.text for item in found.notes("tiling")] == ["old"]


def test_modelled_and_measured_outcomes_of_one_gpu_are_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = filled(tmp_path, 8)
    memory.add([experience(n, source="measured", gain=-0.5, episode=f"m{n}")[1] for n in range(20, 28)])
    held = signature(DRAM)
    modelled = memory.knowledge.posterior("coalescing", held, "H200", "modelled")
    measured = memory.knowledge.posterior("coalescing", held, "H200", "measured")
    assert (modelled.count, measured.count) == (8, 8) and measured.mean < -0.3 < 0.0 < modelled.mean
    memory.add([Operation("belief", "coalescing", value=1.0, weight=50.0, device="H200", source="modelled")])
    again = memory.knowledge.posterior("coalescing", held, "H200", "measured")
    assert memory.knowledge.posterior("coalescing", held, "H200", "modelled").mean > modelled.mean + 0.1
    assert abs(again.mean - measured.mean) < 0.1  # through the technique anywhere, which is shrunk away
    memory.close()
    assert cli.main(["memory", "info", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "H200, modelled: 8 experiences" in text and "H200, measured: 8 experiences" in text


def test_an_alias_with_a_signature_splits_a_technique() -> None:
    knowledge = Knowledge()
    wide = [experience(n, technique="tiling", gain=1.0, episode=f"a{n}")[1] for n in range(6)]
    idle = [
        experience(n, technique="tiling", gain=-0.4, profile=IDLE, episode=f"b{n}")[1] for n in range(10, 16)
    ]
    knowledge.add([*wide, *idle, *starter()])
    mixed = knowledge.posterior("tiling", signature(IDLE), "H200", "modelled")
    knowledge.add([Operation("alias", "tiling", "latency tiling", signature="latency", time=1.0)])
    apart = knowledge.posterior("tiling", signature(IDLE), "H200", "modelled")
    assert apart.technique == "latency tiling" and apart.mean < mixed.mean and apart.count == 6
    assert knowledge.posterior("tiling", signature(DRAM), "H200", "modelled").technique == "tiling"
    ranked = [item.technique for item in knowledge.rank(signature(IDLE), "H200", "modelled")]
    assert "latency tiling" in ranked and "tiling" not in ranked
    circle = [Operation("alias", "a", "b", time=2.0), Operation("alias", "b", "a", time=3.0)]
    knowledge.add(circle)
    assert knowledge.resolve("a") in ("a", "b")
    draws = knowledge.rank(signature(IDLE), "H200", "modelled", rng=np.random.default_rng(0))
    assert len({item.technique for item in draws}) == len(draws)
