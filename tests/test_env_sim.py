"""The environment on the simulator: real builds, real kernels, modelled times."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import kb_env
from kb_env.edits import diff_action
from kb_env.env import CudaEnv
from kb_env.records import pack
from kb_env.replay import Recorder, ReplayEvaluator
from kb_env.sim.evaluator import SimEvaluator
from kb_env.task import load_task, solutions
from kb_env.types import Status
from kb_env.wrappers import DiscreteEdits, FlatProfile

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

TASK = load_task("transpose")


def fence(text: str) -> str:
    return f"````cuda\n{text}````"


def test_gymnasium_accepts_the_simulated_environment(store: Path) -> None:
    env = gym.make("kb/CudaSim-v0", task="softmax", store=store)
    check_env(env.unwrapped)
    env.close()


def test_an_episode_on_the_simulator_and_its_replay(store: Path, tmp_path: Path) -> None:
    right = solutions(TASK, "right")["vec4"].text
    actions = [
        diff_action(TASK.source, TASK.source.replace("constexpr int BLOCK", "// note\nconstexpr int BLOCK")),
        fence(right),
        fence(f"// only a comment is new\n{right}"),
        fence(right.replace("void launch(", "void lunch(")),
        fence(TASK.source.replace("= x[(size_t)r * cols + c]", "= 0.0f")),
        "revert",
    ]

    def play(env: CudaEnv) -> list[tuple[Status, float, str]]:
        env.reset(seed=1)
        for action in actions:
            observation, *_ = env.step(action)
            assert observation in env.observation_space
        return [(step.status, step.reward, step.feedback) for step in env.episode.steps]

    path = tmp_path / "recording"
    with SimEvaluator(store=store) as sim:
        env = CudaEnv(TASK, evaluator=Recorder(sim, path), evaluate_on_reset=True, render_mode="ansi")
        steps = play(env)
    statuses = [status for status, _, _ in steps]
    assert statuses[:3] == [Status.TIMED] * 3
    assert statuses[3:5] == [Status.BUILD_FAILED, Status.WRONG]
    same_code, solved, same_again, *_ = env.episode.steps
    assert same_code.cached
    assert same_again.cached
    assert solved.reward > 0
    assert solved.speedup is not None
    assert solved.speedup > 2
    assert [reward for _, reward, _ in steps[2:]] == [0.0, -0.02, -0.02, 0.0]
    assert env.episode.best_low is not None
    assert sum(reward for _, reward, _ in steps) == pytest.approx(math.log(env.episode.best_low) - 0.04)
    assert "MODELLED" in (env.render() or "")
    assert "modelled on" in steps[1][2]
    replayed = play(CudaEnv(TASK, evaluator=ReplayEvaluator(path), evaluate_on_reset=True))
    assert replayed == steps


def test_two_environments_agree_to_the_bit(store: Path) -> None:
    def play() -> tuple[list[bytes], list[float]]:
        env = FlatProfile(DiscreteEdits(kb_env.make("kb/CudaSim-v0", task="softmax", store=store)))
        seen, rewards = [env.reset(seed=5)[0].tobytes()], []
        for action in (0, 3, 9):
            observation, reward, *_ = env.step(action)
            seen.append(observation.tobytes())
            rewards.append(float(reward))
        env.close()
        return seen, rewards

    assert pack(play()) == pack(play())
