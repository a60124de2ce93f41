"""Off-policy evaluation of draws from logged propensities."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from test_maicrl import Model, code, plan, policy, run

from experiments.scripted_server import ScriptedServer
from memory.entries import Operation
from memory.knowledge import Knowledge
from policies.budget import Limits
from policies.maicrl_worth import Choice, choices_of, worth


def logged(count: int, seed: int) -> list[Choice]:
    """Draws that were even between a technique that gains 1.0 and one that gains nothing, with noise."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        drawn = int(rng.integers(2))
        gain = (1.0 - drawn) + 0.1 * float(rng.normal())
        found.append(
            Choice(
                ("tiling", "padding"),
                (None, None),
                drawn,
                0.5,
                gain,
                "dram",
                "thompson",
                ("H200", "modelled"),
            )
        )
    return found


def believer(name: str) -> Knowledge:
    knowledge = Knowledge()
    other = {"tiling": "padding", "padding": "tiling"}[name]
    knowledge.add(
        [
            Operation("belief", name, value=1.5, weight=50.0),
            Operation("belief", other, value=-1.5, weight=50.0),
        ]
    )
    return knowledge


def test_what_another_knowledge_base_would_have_gained_is_estimated() -> None:
    draws = logged(400, 1)
    right, wrong = worth(draws, believer("tiling")), worth(draws, believer("padding"))
    assert right.logged == wrong.logged == pytest.approx(0.5, abs=0.1)
    assert right.estimated == pytest.approx(0.98, abs=0.05) and wrong.estimated == pytest.approx(
        0.02, abs=0.05
    )
    assert 150 < right.effective < 300 and right.count == 400
    assert math.isnan(worth([], believer("tiling")).estimated)


def test_a_knowledge_base_that_draws_as_was_drawn_is_worth_what_was_found() -> None:
    found = worth(logged(200, 2), Knowledge())
    assert found.estimated == pytest.approx(found.logged, abs=0.05) and found.effective > 190


@pytest.fixture
def model() -> Iterator[Model]:
    yield Model()


def test_draws_are_read_from_notes_and_repairs_count_for_their_draw(model: Model) -> None:
    model.plans = [plan(("tiling", 1.5, "tile it"), ("padding", 1.1, "pad it"))]
    model.codes = ["no edit", code(500), code(250), "no edit", "no edit", "no edit"]
    with ScriptedServer(model) as server:
        episode = run(policy(server.url, trajectories=1, repairs=2), steps=6)
    found = list(choices_of(episode))
    assert [item.gain for item in found] == pytest.approx([math.log(2), math.log(2), 0.0])
    assert all(item.techniques == ("tiling", "padding") and item.by == "thompson" for item in found)
    assert [item.propensity for item in found] == [
        step.notes["propensity"] for step in episode.steps if "propensity" in step.notes
    ]
    assert len(list(choices_of(episode, start=0.5))) == 1


def test_a_draw_that_the_budget_left_untried_says_nothing(model: Model) -> None:
    model.plans, model.codes = [plan(("tiling", 1.5, "tile it"))], [code(500)]
    with ScriptedServer(model) as server:
        episode = run(policy(server.url, trajectories=1, limits=Limits(requests=3)), steps=6)
    assert "candidates" in episode.steps[-1].notes and "stopped" in episode.steps[-1].notes
    assert [item.gain for item in choices_of(episode)] == pytest.approx([math.log(2)])
