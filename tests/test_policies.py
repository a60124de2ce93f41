"""Contract of every policy that needs no language model: valid actions, repeatable, ends by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import PaperEvaluator, code

from kb_env.edits import apply_edits, parse_action
from kb_env.env import CudaEnv
from kb_env.evaluators import Prepared, Purpose
from kb_env.task import load_task
from kb_env.types import Episode, Evaluation, Fault, KbError, Program, Status, StepRecord, Task, digest
from policies.hillclimb import Hillclimb
from policies.moves import Belief, moves, outcomes, read_beliefs
from policies.policy import POLICIES, Policy, make_policy, notes_of
from policies.tune import build, space

SEARCHES = ("random", "hillclimb", "tune")
TASKS = ("softmax", "matmul_fp32", "bias_gelu_residual_rmsnorm")


class Landscape(PaperEvaluator):
    """Every program has a time, or a fault, that follows from its code: rugged, but repeatable."""

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        number = int(digest(code(prepared.program.text)), 16)
        evaluation = super().measure(prepared, purpose)
        if number % 5 == 0 and prepared.program.text != prepared.task.source:
            fault = Fault(Status.WRONG, "verify", "element 0 is wrong")
            return replace(evaluation, timings=None, verification=None, fault=fault)
        return evaluation

    def _timing(self, baseline: str, candidate: str, name: str) -> Any:
        def timed(text: str) -> str:
            return f"// us: {200 + int(digest(code(text)), 16) % 800}"

        return super()._timing(timed(baseline), timed(candidate), name)


def play(policy: Policy, task: str | Task, steps: int, seed: int = 0) -> Episode:
    """One episode; every action has to be an edit that applies, or submit."""
    env = CudaEnv(task=task, evaluator=Landscape(), max_steps=steps)
    observation, _ = env.reset(seed=seed, options={"policy": policy.name})
    policy.begin(env.task, np.random.default_rng(seed))
    done = False
    while not done:
        action = policy.act(observation, env.episode)
        parsed = parse_action(action)
        if parsed.kind in ("edits", "file"):
            assert apply_edits(str(observation["source"]), parsed.edits) != observation["source"]
        env.note(**notes_of(policy))
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    assert all(step.status is not Status.BAD_EDIT for step in env.episode.steps)
    return env.episode


def texts(episode: Episode) -> list[str]:
    return [step.after.text if step.after is not None else step.action for step in episode.steps]


# ---------------------------------------------------------------- every policy


@pytest.mark.parametrize("name", ["random", "hillclimb", "tune", "script"])
def test_policies_follow_the_protocol(name: str) -> None:
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    assert policy.name == name
    assert name in POLICIES


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SEARCHES)
def test_same_seed_same_episode_and_no_program_twice(name: str, task: str) -> None:
    steps = 16 if name == "tune" else 8  # its first trials are the same for every seed
    first, second, other = (play(make_policy(name), task, steps, seed) for seed in (3, 3, 4))
    assert texts(first) == texts(second)
    assert texts(first) != texts(other)
    assert len(set(texts(first))) == len(first.steps) == steps
    assert {step.status for step in first.steps} <= {Status.TIMED, Status.WRONG}
    assert all("technique" in step.notes for step in first.steps)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_submit_when_nothing_applies(name: str) -> None:
    task = load_task("vector_add")
    text = 'extern "C" int nothing_to_do;\n'
    policy, program = make_policy(name), Program(task.name, text)
    policy.begin(task, np.random.default_rng(0))
    episode = Episode("vector_add", name, 0, "", "modelled", "sealed", {}, program, None, (), program, 1.0)
    observation = {"source": text, "best_source": text, "feedback": ""}
    assert [policy.act(observation, episode) for _ in range(3)] == ["submit"] * 3


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_end_by_themselves(name: str, tmp_path: Path) -> None:
    source = "__global__ void k(float* x) { x[threadIdx.x] = 1.0f; }\n"
    source += "void launch(const float* a, const float* b, float* c, int n) { k<<<1, n>>>(c); }\n"
    task = replace(load_task("vector_add"), source=source)
    episode = play(make_policy(name), task, 60)
    assert episode.ended == "submitted"
    assert len(episode.steps) < 60


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_go_on_after_failures_of_every_kind(name: str) -> None:
    task = load_task("softmax")
    policy = make_policy(name)
    policy.begin(task, np.random.default_rng(1))
    before = task.initial
    steps: tuple[StepRecord, ...] = ()
    for number, status in enumerate(item for item in Status if item is not Status.TIMED):
        episode = _episode(task, steps)
        action = policy.act(
            {"source": before.text, "best_source": before.text, "feedback": "failed"}, episode
        )
        after = Program(task.name, apply_edits(before.text, parse_action(action).edits))
        assert after.text not in {step.after.text for step in steps if step.after is not None}
        kept = None if status is Status.BAD_EDIT else after
        notes = notes_of(policy)
        step = StepRecord(number, action, before, kept, None, status, "", -0.1, None, 1.0, notes=notes)
        steps = (*steps, step)


def _episode(task: Task, steps: tuple[StepRecord, ...]) -> Episode:
    return Episode(
        task.name, "p", 0, "", "modelled", "sealed", {}, task.initial, None, steps, task.initial, 1.0
    )


@pytest.mark.parametrize("name", SEARCHES)
def test_save_and_load_give_the_same_behaviour(name: str, tmp_path: Path) -> None:
    policy = make_policy(name)
    policy.learn([play(make_policy(name), "softmax", 8, 2)])
    policy.save(tmp_path)
    copy = make_policy(name)
    copy.load(tmp_path)
    assert texts(play(policy, "matmul_fp32", 5)) == texts(play(copy, "matmul_fp32", 5))


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(SEARCHES), st.integers(0, 1 << 20))
def test_any_seed_gives_valid_actions(name: str, seed: int) -> None:
    episode = play(make_policy(name), "transpose", 4, seed)
    assert len(episode.steps) == 4


# ---------------------------------------------------------------- the registry


def test_user_policies_by_module_and_class() -> None:
    assert isinstance(make_policy("policies.hillclimb:Hillclimb", patience=3), Hillclimb)


@pytest.mark.parametrize(
    "name, settings, word",
    [
        ("clever", {}, "choose one of"),
        ("no.such.module:Policy", {}, "cannot load"),
        ("policies.tune:Nothing", {}, "cannot load"),
        ("policies.moves:Move", {"name": "", "variant": 0, "technique": "", "text": ""}, "not a policy"),
        ("random", {"colour": 1}, "does not take"),
    ],
)
def test_wrong_names_say_what_to_do(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(KbError, match=word):
        make_policy(name, **settings)


# ---------------------------------------------------------------- each policy


def test_script_plays_its_list_and_submits(tmp_path: Path) -> None:
    task = load_task("vector_add")
    path = tmp_path / "better.cu"
    path.write_text(task.source.replace("256", "128"))
    edit = "<<<<<<< SEARCH\nconstexpr int BLOCK = 128;\n=======\nconstexpr int BLOCK = 64;\n>>>>>>> REPLACE\n"
    episode = play(make_policy("script", actions=[path, edit]), task, 10)
    assert [step.after.text for step in episode.steps[:2] if step.after is not None] == [
        path.read_text(),
        task.source.replace("256", "64"),
    ]
    assert episode.ended == "submitted"
    with pytest.raises(KbError, match="cannot read"):
        make_policy("script", actions=[tmp_path / "missing.cu"])


def test_hillclimb_builds_on_the_best_program() -> None:
    episode = play(make_policy("hillclimb", patience=100), "softmax", 12)
    best, best_speedup = episode.initial, 1.0
    for step in episode.steps:
        assert step.after is not None
        assert step.after.text in {move.text for move in moves(best.text)}
        if step.best_speedup > best_speedup:
            best, best_speedup = step.after, step.best_speedup
    assert best_speedup > 1.5


def test_hillclimb_goes_elsewhere_after_a_drought() -> None:
    episode = play(make_policy("hillclimb", patience=2), "softmax", 25)
    parents = {step.notes["base_key"] for step in episode.steps}
    bests = {step.after.key for step in episode.steps if step.after and step.speedup == step.best_speedup}
    assert parents - bests - {episode.initial.key}


def test_hillclimb_learns_which_technique_pays(tmp_path: Path) -> None:
    task = load_task("softmax")
    good, bad = (move for move in moves(task.source) if move.key in ("launch_bounds:0", "hold_row:0"))
    good, bad = sorted((good, bad), key=lambda move: move.name, reverse=True)
    steps = tuple(
        StepRecord(
            number, "", task.initial, Program(task.name, move.text + "\n" * number), None, Status.TIMED, "",
            0.0, speedup, 1.0, notes={"technique": move.technique, "move": move.key},
        )
        for number, (move, speedup) in enumerate([(good, 2.0), (bad, 0.5)] * 20)
    )  # fmt: skip
    policy = Hillclimb()
    policy.learn([_episode(task, steps)])
    assert policy.beliefs[good.technique] == Belief(pytest.approx(math.log(2.0)), 20)
    assert play(policy, task, 1).steps[0].notes["technique"] == good.technique
    policy.save(tmp_path)
    assert read_beliefs(tmp_path / "beliefs.json") == policy.beliefs


class Notebook:
    """A memory that believes in one technique."""

    def __init__(self) -> None:
        self.kept: list[StepRecord] = []

    def recall(self, task: Task, observation: Mapping[str, Any]) -> Mapping[str, Belief]:
        return {"arithmetic": Belief(3.0, 50.0)}

    def remember(self, task: Task, record: StepRecord) -> None:
        self.kept.append(record)


def test_hillclimb_asks_its_memory_and_tells_it() -> None:
    memory = Notebook()
    episode = play(make_policy("hillclimb", memory=memory), "softmax", 6)
    assert episode.steps[0].notes["technique"] == "arithmetic"
    assert memory.kept == list(episode.steps[:-1])  # the last step is seen by the next act only


def test_broken_files_are_named(tmp_path: Path) -> None:
    policy = Hillclimb()
    with pytest.raises(KbError, match="nothing to load"):
        policy.load(tmp_path)
    for content in ("", "[1, 2]", '{"a": 3}', '{"a": ["x", "y"]}'):
        (tmp_path / "beliefs.json").write_text(content)
        with pytest.raises(KbError, match="delete it"):
            policy.load(tmp_path)


def test_tune_dimensions_start_with_the_program_as_it_is() -> None:
    text = load_task("softmax").source
    found = space(text)
    assert found["constant BLOCK"][0] == "256"
    assert {"hold_row", "warp_shuffles", "unroll"} <= set(found)
    assert build(text, {name: choices[0] for name, choices in found.items()}) == text
    assert "BLOCK = 512" in build(text, {**{n: c[0] for n, c in found.items()}, "constant BLOCK": "512"})


def test_tune_tries_each_transform_alone_first() -> None:
    names = list(space(load_task("softmax").source))
    episode = play(make_policy("tune"), "softmax", len(names) - 1)
    assert [step.notes["move"].split(", ")[0] for step in episode.steps] == names[:-1]


def test_outcomes_compare_with_the_parent() -> None:
    episode = play(make_policy("random"), "softmax", 10)
    known = {episode.initial.key: 1.0}
    for step, gain in outcomes(episode):
        if step.speedup is None:
            assert gain is None
        else:
            assert gain == pytest.approx(math.log(step.speedup / known[step.before.key]))
            assert step.after is not None
            known[step.after.key] = step.speedup
