"""The environment's contract: Gymnasium's checks, steps, rewards, budgets, hostile input."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import PaperEvaluator

import kb_env
from kb_env.backends import choose, explain, gpu_obstacle, make_evaluator
from kb_env.edits import ACTION_LIMIT, diff_action
from kb_env.env import CudaEnv
from kb_env.evaluators import Purpose
from kb_env.observe import INFO_KEYS
from kb_env.records import pack, unpack
from kb_env.remember import Remembering
from kb_env.replay import Recorder
from kb_env.rewards import FAILURE_COST, Outcome
from kb_env.spaces import CodeText
from kb_env.suites import held_out, task_pool
from kb_env.task import load_task
from kb_env.types import Episode, KbError, Program, Status

TASK = load_task("softmax")


def variant(text: str) -> str:
    """An action: the initial program with a line of instructions to the paper evaluator."""
    return f"```cuda\n{TASK.source}{text}\n```"


def make(**kwargs: object) -> CudaEnv:
    env = CudaEnv(TASK, evaluator=PaperEvaluator(), **kwargs)  # type: ignore[arg-type]
    env.reset(seed=1)
    return env


def test_an_episode_pays_the_log_of_its_confirmed_speedup() -> None:
    env = make()
    rewards = [env.step(variant(f"// us: {us}"))[1] for us in (500, 800, 400, 250)]
    assert rewards == pytest.approx([math.log(2), 0, math.log(1.25), math.log(1.6)])
    assert env.episode.best_speedup == pytest.approx(4.0)
    assert env.episode.best_low is not None
    assert sum(rewards) == pytest.approx(math.log(env.episode.best_low))
    assert [step.status for step in env.episode.steps] == [Status.TIMED] * 4
    assert env.episode.best.text.endswith("// us: 250\n")
    *_, terminated, truncated, info = env.step("submit")
    assert (terminated, truncated, info["ended"]) == (True, False, 1.0)
    assert env.episode.ended == "submitted"
    with pytest.raises(KbError, match="call reset"):
        env.step("submit")


def test_slower_verified_programs_are_kept_and_failed_ones_are_not() -> None:
    env = make()
    env.step(variant("// us: 500"))
    observation, reward, *_ = env.step(variant("// us: 2000"))
    assert reward == 0
    assert observation["source"].endswith("// us: 2000\n")
    assert observation["best_source"].endswith("// us: 500\n")
    for status in ("WRONG", "BUILD_FAILED", "CRASHED", "TIMED_OUT", "REFUSED"):
        observation, reward, _, _, info = env.step(variant(f"// fault: {status}"))
        assert reward == -FAILURE_COST
        assert info["status"] == list(Status).index(Status(status))
        assert status in observation["feedback"]
        assert observation["source"].endswith("// us: 2000\n")
    observation, reward, *_ = env.step("revert")
    assert reward == 0
    assert observation["source"] == observation["best_source"]
    assert observation["speedup"] == pytest.approx(2.0)


def test_comment_edits_get_the_same_evaluation_back() -> None:
    env = make()
    env.step(variant("// us: 500"))
    before = list(env.evaluator.calls)
    for number in range(3):
        _, reward, *_, info = env.step(diff_action(env.program.text, f"// note {number}\n{env.program.text}"))
        assert reward == 0
        assert info["cached"] == 1.0
        assert info["speedup"] == pytest.approx(2.0)
    assert env.evaluator.calls == before


def test_asking_again_does_not_change_an_answer() -> None:
    """A lucky first measurement cannot be fished for: the same pair is measured once."""
    env = CudaEnv(TASK, evaluator=PaperEvaluator(noise=0.05, source="measured"), max_steps=100)
    env.reset(seed=1)
    action = variant("// us: 970")
    rewards = [env.step(action)[1] for _ in range(10)]
    assert len(env.evaluator.calls) <= 2
    assert rewards[1:] == [0.0] * 9


def test_noise_earns_nothing() -> None:
    """400 variants as fast as the initial program, each measured with 1 % noise."""
    env = CudaEnv(TASK, evaluator=PaperEvaluator(noise=0.01, source="measured"), max_steps=1000)
    env.reset(seed=1)
    rewards = [env.step(variant(f"int a{i}; // us: 1000"))[1] for i in range(400)]
    assert sum(rewards) < 0.02
    single = [step.speedup for step in env.episode.steps if step.speedup is not None]
    assert math.log(max(single)) > 0.02  # what paying single measurements would have earned


def test_a_program_that_fails_when_measured_again_has_failed() -> None:
    env = make()
    action = variant("// us: 10 // later: WRONG")
    observation, reward, *_ = env.step(action)
    assert reward == -FAILURE_COST
    assert "Failed when measured again: WRONG" in observation["feedback"]
    assert env.episode.best == TASK.initial
    assert env.step(action)[1] == -FAILURE_COST


def test_steps_and_budgets_truncate() -> None:
    env = make(max_steps=3)
    outcomes = [env.step("nonsense")[3] for _ in range(3)]
    assert outcomes == [False, False, True]
    assert env.episode.ended == "steps"
    for budget in ({"evaluations": 3}, {"seconds": 2.0}):
        env = make(budget=budget)
        outcomes = [env.step(variant(f"// us: {us}"))[3] for us in (900, 800)]
        assert outcomes == [False, True]
        assert env.episode.ended == "budget"
    with pytest.raises(KbError, match="use seconds or evaluations"):
        make(budget={"tokens": 1})


def test_a_harness_fault_truncates_without_reward() -> None:
    for reward in ("gain", "delta", "terminal", "roofline"):
        env = make(reward=reward)
        env.step(variant("// us: 500"))
        observation, paid, terminated, truncated, info = env.step(variant("// fault: HARNESS"))
        assert (paid, terminated, truncated, info["ended"]) == (0.0, False, True, 4.0)
        assert env.episode.ended == "fault: HARNESS"
        assert "disk is full" in observation["feedback"]
    env.reset()
    assert env.step("submit")[2]


def test_reward_functions() -> None:
    paid = {}
    for name in ("gain", "delta", "terminal", "roofline"):
        env = make(reward=name, max_steps=4)
        actions = [variant("// us: 500"), variant("// us: 1000"), "garbage", variant("// us: 400")]
        paid[name] = [env.step(action)[1] for action in actions]
    assert paid["gain"] == pytest.approx([math.log(2), 0, -FAILURE_COST, math.log(1.25)])
    assert paid["delta"] == pytest.approx([math.log(2), -math.log(2), -FAILURE_COST, math.log(2.5)])
    assert paid["terminal"] == pytest.approx([0, 0, 0, math.log(2.5)])
    assert paid["roofline"] == pytest.approx([0.1, 0, -FAILURE_COST, 0.05])
    env = make(reward=lambda outcome: math.nan if outcome.ended else 7)
    assert env.step("garbage")[1] == 7
    with pytest.raises(KbError, match="finite"):
        env.step("submit")
    with pytest.raises(KbError, match="no reward 'speed'"):
        make(reward="speed")
    assert Outcome(Status.UNRECORDED, 1, 1, 1, 1, None, True).failed is False


HOSTILE = [
    "x" * 10_000_000,
    "\x00\x1b[2J" * 1000,
    "\ud800",
    "",
    "<<<<<<< SEARCH\nfoo",
    "```cuda\n" + "a" * (ACTION_LIMIT - 100) + "\n```",
    b"submit",
    None,
    ["submit"],
]


def test_hostile_actions_are_bad_edits_and_the_next_step_works() -> None:
    env = make(max_steps=50)
    start = time.monotonic()
    for action in HOSTILE:
        observation, reward, terminated, truncated, info = env.step(action)  # type: ignore[arg-type]
        assert reward == -FAILURE_COST
        assert not (terminated or truncated)
        assert info["status"] == 0
        assert observation in env.observation_space
        assert len(observation["feedback"]) < 10_000
    assert env.step(variant("// us: 500"))[1] > 0
    assert time.monotonic() - start < 5
    assert pack(unpack(Episode, pack(env.episode))) == pack(env.episode)


def test_messages_of_candidates_are_made_printable_and_short() -> None:
    env = make()
    observation, *_ = env.step(variant("// fault: BUILD_FAILED"))
    assert "\x1b" not in observation["feedback"]
    assert "characters cut" in observation["feedback"]
    assert observation in env.observation_space


def test_observations_and_infos_are_finite_flat_and_fresh() -> None:
    env = make()
    seen = [env.reset(seed=3)]
    for action in (variant("// us: 500"), "bad", variant("// fault: WRONG"), "revert", "submit"):
        observation, _, _, _, info = env.step(action)
        seen.append((observation, info))
    for observation, info in seen:
        assert observation in env.observation_space
        assert tuple(info) == INFO_KEYS
        assert all(isinstance(value, float) for value in info.values())
    assert seen[0][0]["profile_mask"].sum() == 0
    assert seen[1][0]["profile_mask"].sum() == 2
    assert seen[1][0]["steps_left"] == 9
    assert "void launch(const float* x" in seen[0][0]["task"]


def test_construction_is_cheap_and_starts_nothing() -> None:
    start = time.monotonic()
    for _ in range(50):
        CudaEnv("softmax", backend="gpu")
    assert time.monotonic() - start < 0.5
    env = CudaEnv("softmax", backend="replay:/nowhere/recording")
    with pytest.raises(KbError, match="cannot read /nowhere/recording"):
        env.reset()


def test_bad_use_is_told_in_one_line() -> None:
    for kwargs, words in (
        ({"max_steps": 0}, "at least one step"),
        ({"render_mode": "rgb_array"}, "no render mode"),
        ({"suite": "kb"}, "either task or suite"),
        ({"split": "dev"}, "no split"),
    ):
        with pytest.raises(KbError, match=words):
            CudaEnv("softmax", **kwargs)
    env = CudaEnv(TASK, evaluator=PaperEvaluator())
    with pytest.raises(KbError, match="call reset"):
        env.step("submit")
    with pytest.raises(KbError, match="no reset option 'seed'"):
        env.reset(options={"seed": 1})
    with pytest.raises(KbError, match="is for task 'gelu'"):
        env.reset(options={"program": Program("gelu", "")})


def test_reset_takes_task_and_program_and_can_evaluate() -> None:
    env = CudaEnv(suite="kb", evaluator=PaperEvaluator(), evaluate_on_reset=True)
    faster = f"{TASK.source}// us: 500\n"
    observation, info = env.reset(seed=1, options={"task": "softmax", "program": faster, "policy": "mine"})
    assert observation["source"] == faster
    assert observation["best_speedup"] == pytest.approx(2.0)
    assert info["speedup"] == pytest.approx(2.0)
    assert env.episode.policy == "mine"
    assert env.step(variant("// us: 250"))[1] == pytest.approx(math.log(2))
    with pytest.raises(KbError, match="first program of softmax is WRONG at verify"):
        env.reset(options={"task": TASK, "program": f"{TASK.source}// fault: WRONG\n"})


def test_a_suite_is_drawn_by_seed_and_split_by_family() -> None:
    env = CudaEnv(suite="kb", evaluator=PaperEvaluator())

    def drawn(seed: int) -> str:
        env.reset(seed=seed)
        return env.task.name

    assert [drawn(s) for s in range(20)] == [drawn(s) for s in range(20)]
    assert len({drawn(s) for s in range(20)}) > 1 or len(task_pool(None, "kb", "all").entries) == 1
    pool = task_pool(None, [TASK], "test" if held_out(TASK.family) else "train")
    assert pool.draw(np.random.default_rng(0)) == TASK
    with pytest.raises(KbError, match="is empty"):
        _ = task_pool(None, [TASK], "train" if held_out(TASK.family) else "test").tasks


def test_snapshots_restore_and_survive_pickling() -> None:
    env = make()
    env.step(variant("// us: 500"))
    point = pickle.loads(pickle.dumps(env.snapshot()))
    first = env.step(variant("// us: 250"))
    observation, info = env.restore(point)
    assert observation["source"].endswith("// us: 500\n")
    assert info["step"] == 1
    calls = len(env.evaluator.calls)
    second = env.step(variant("// us: 250"))
    assert second[1] == first[1]
    assert len(env.evaluator.calls) == calls  # what was measured on the other branch stays known
    other = make()
    other.restore(point)
    assert other.step(variant("// us: 250"))[1] == first[1]


def test_environments_pickle_mid_episode() -> None:
    env = make()
    env.step(variant("// us: 500"))
    copy = pickle.loads(pickle.dumps(env))
    a, b = env.step(variant("// us: 250")), copy.step(variant("// us: 250"))
    assert a[1] == b[1]
    assert a[0]["source"] == b[0]["source"]
    assert pickle.loads(pickle.dumps(CudaEnv("softmax"))).reset is not None


def test_evaluate_many_keeps_order_and_takes_no_step() -> None:
    env = make()
    texts = [f"{TASK.source}// us: {us}\n" for us in (500, 250, 500)] + [f"{TASK.source}// fault: WRONG\n"]
    found = env.evaluate_many(texts)
    assert [evaluation.speedup for evaluation in found] == [2.0, 4.0, 2.0, None]
    assert env.episode.steps == ()
    assert len(env.evaluator.calls) == 3
    assert env.step(variant("// us: 250"))[4]["cached"] == 1.0


def test_modelled_evaluations_are_remembered_and_measured_ones_are_not() -> None:
    inner = PaperEvaluator()
    memory = Remembering(inner)
    episodes = []
    for _ in range(3):
        env = CudaEnv(TASK, evaluator=memory, inputs_seed=7, evaluate_on_reset=True)
        env.reset(seed=1)
        steps = [env.step(variant(f"// us: {us}")) for us in (500, 250)]
        episodes.append([(step[1], step[4]) for step in steps])
    assert episodes[0] == episodes[1] == episodes[2]
    assert len(inner.calls) == 5  # the initial program, and two programs measured twice each
    assert memory.evaluate(TASK, Program("softmax", "// fault: BUILD_FAILED")).fault is not None
    with pytest.raises(KbError, match="only modelled"):
        Remembering(PaperEvaluator(source="measured"))


def test_remembered_evaluations_outlive_their_process_in_a_folder(tmp_path: Path) -> None:
    episodes, calls = [], []
    for _ in range(2):
        inner = PaperEvaluator()
        env = CudaEnv(TASK, evaluator=Remembering(inner, tmp_path), inputs_seed=7, evaluate_on_reset=True)
        env.reset(seed=1)
        steps = [env.step(variant(f"// {word}")) for word in ("us: 500", "fault: BUILD_FAILED", "us: 250")]
        episodes.append([(step[0]["feedback"], step[1], step[4]["best_speedup"]) for step in steps])
        calls.append(len(inner.calls))
    assert episodes[0] == episodes[1]
    assert calls[0] > 0
    assert calls[1] == 0
    again = PaperEvaluator()
    for purpose in (Purpose(), Purpose(sanitize=True), Purpose(libraries=("eager",)), Purpose(sanitize=True)):
        Remembering(again, tmp_path).evaluate(TASK, TASK.initial, purpose)
    assert len(again.calls) == 3  # what is asked for beside the times is part of the question
    for path in tmp_path.iterdir():  # damaged or of another version: made again
        path.write_bytes(b"\xc1 no record")
    assert Remembering(PaperEvaluator(), tmp_path).evaluate(TASK, TASK.initial).verified


def test_the_record_holds_what_the_policy_noted_and_the_phases() -> None:
    env = make()
    env.note(technique="vectorize", predicted=1.5)
    env.step(variant("// us: 500"))
    env.step("bad")
    first, second = env.episode.steps
    assert first.notes == {"technique": "vectorize", "predicted": 1.5}
    assert second.notes == {}
    assert {"edit", "build", "time", "confirm"} <= set(first.seconds)
    assert first.before == TASK.initial
    assert first.confirmation is not None
    assert second.after is None
    assert pack(unpack(Episode, pack(env.episode))) == pack(env.episode)


def test_rendering_says_modelled(capsys: pytest.CaptureFixture[str]) -> None:
    env = make(render_mode="ansi")
    env.step(variant("// us: 500"))
    env.step("bad")
    table = env.render()
    assert table is not None
    assert "softmax on Paper: MODELLED, not measured (sealed)" in table
    assert "TIMED         2.000 (2.000 to 2.000) modelled" in table
    assert "+1 -0 lines at 39" in table
    assert "no edit found" in table
    human = make(render_mode="human")
    human.step("revert")
    assert human.render() is None
    assert "revert" in capsys.readouterr().out


def test_code_text_samples_valid_edits() -> None:
    space = CodeText(1000, seed=1)
    assert space.sample() == "revert"
    env = make()
    for _ in range(3):
        action = env.action_space.sample()
        assert action in env.action_space
        assert env.step(action)[4]["status"] == list(Status).index(Status.TIMED)
    assert pickle.loads(pickle.dumps(space)) == space
    assert "a\x1b" not in space
    assert "größe\r\n\t漢字" in space
    assert space.clean("\x00" * 5000) in space
    a, b = CodeText(50, seed=5), CodeText(50, seed=5)
    a.source = b.source = "int x;\n"
    assert [a.sample() for _ in range(5)] == [b.sample() for _ in range(5)]


def recording(tmp_path: Path) -> Path:
    """What one episode on paper found, in a file."""
    path = tmp_path / "recording.kb"
    recorder = Recorder(PaperEvaluator(), path)
    env = CudaEnv(TASK, evaluator=recorder, evaluate_on_reset=True)
    env.reset(seed=1)
    for us in (500, 800, 400, 250):
        env.step(variant(f"// us: {us}"))
    env.step(variant("// fault: WRONG"))
    recorder.close()
    return path


def test_gymnasium_accepts_the_replay_environment(tmp_path: Path) -> None:
    backend = f"replay:{recording(tmp_path)}"
    env = gym.make("kb/CudaReplay-v0", backend=backend, task="softmax")
    check_env(env.unwrapped)
    assert env.spec is not None
    assert env.spec.nondeterministic is False


def worker(path: str) -> CudaEnv:
    return CudaEnv("softmax", backend=f"replay:{path}", max_steps=3)


def test_vector_environments(tmp_path: Path) -> None:
    path = str(recording(tmp_path))
    makers = [lambda: worker(path)] * 2
    for vector in (
        gym.vector.SyncVectorEnv(makers),
        gym.vector.AsyncVectorEnv(makers, shared_memory=False),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the vector spaces of Gymnasium warn of their own casts
            vector.reset(seed=7)
            for us in (500, 800, 250, 400, 250):
                observations, rewards, _, _, infos = vector.step([variant(f"// us: {us}"), "bad"])
            assert len(observations["source"]) == 2
            assert infos["step"].dtype == np.float64
            assert rewards.shape == (2,)
        vector.close()


def test_ids_are_registered_and_nothing_heavy_is_imported() -> None:
    script = (
        "import sys, kb_env, gymnasium\n"
        "env = kb_env.make('kb/CudaSim-v0', task='softmax', max_steps=5)\n"
        "assert not gymnasium.spec('kb/CudaSim-v0').nondeterministic\n"
        "assert gymnasium.spec('kb/Cuda-v0').nondeterministic\n"
        "heavy = {'torch', 'ray', 'openai', 'hnswlib', 'cuda', 'llvmlite', 'scipy', 'tree_sitter'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_make_chooses_what_the_machine_has(tmp_path: Path) -> None:
    env = kb_env.make("kb/CudaReplay-v0", backend=f"replay:{recording(tmp_path)}", task="softmax")
    env.reset(seed=1)
    assert env.step(variant("// us: 500"))[1] == pytest.approx(math.log(2))
    env = kb_env.make("kb/CudaReplay-v0", task="softmax")
    with pytest.raises(KbError, match="name the recording"):
        env.reset()


def test_backends_are_chosen_and_explained() -> None:
    obstacle = gpu_obstacle()
    assert choose("auto")[0] == ("gpu" if obstacle is None else "sim")
    assert explain("auto").startswith("gpu:" if obstacle is None else f"sim: {obstacle}; times are modelled")
    assert choose("sim:A100")[0] == "sim:A100"
    for arguments, words in (
        ({"backend": "cpu"}, "no backend 'cpu'"),
        ({"backend": "replay:"}, "name the recording"),
        ({"backend": "sim:Voodoo2"}, "Voodoo2"),
        ({"backend": "gpu", "device": "A100"}, "give its number"),
    ):
        with pytest.raises(KbError, match=words):
            make_evaluator(**arguments)
    if obstacle is not None:
        with pytest.raises(KbError, match=r"no GPU can be used: .*--backend sim"):
            make_evaluator("gpu")
    assert make_evaluator("sim:A100").device == "A100"


ACTION = st.one_of(
    st.sampled_from(["revert", "garbage", "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE", "\x00"]),
    st.integers(100, 2000).map(lambda us: variant(f"// us: {us}")),
    st.integers(100, 2000).map(lambda us: variant(f"// us: {us} // later: WRONG")),
    st.sampled_from(["WRONG", "BUILD_FAILED", "CRASHED"]).map(lambda fault: variant(f"// fault: {fault}")),
    st.integers(0, 9).map(lambda number: f"note {number}"),
)


@given(st.lists(ACTION, max_size=25), st.sampled_from([0.0, 0.02]))
@settings(deadline=None, max_examples=60)
def test_whatever_is_done_the_books_balance(actions: list[str], noise: float) -> None:
    env = CudaEnv(TASK, evaluator=PaperEvaluator(noise=noise), max_steps=30)
    env.reset(seed=1)
    best = 1.0
    for action in actions:
        if action.startswith("note"):
            text = env.program.text
            action = diff_action(text, f"// {action}\n{text}")
        observation, reward, terminated, truncated, _ = env.step(action)
        assert observation in env.observation_space
        assert not terminated
        assert not truncated
        step = env.episode.steps[-1]
        assert step.best_speedup >= best or noise
        best = step.best_speedup
        if reward > 0:
            assert env.episode.best == step.after == env.program
            assert step.confirmation is not None
            assert step.confirmation.verified
        if step.status is not Status.TIMED:
            assert reward == -FAILURE_COST
            assert env.program == step.before
    failures = sum(step.status is not Status.TIMED for step in env.episode.steps)
    paid = sum(step.reward for step in env.episode.steps)
    assert paid == pytest.approx(math.log(env.episode.best_low or 1.0) - failures * FAILURE_COST)
    assert pack(unpack(Episode, pack(env.episode))) == pack(env.episode)
