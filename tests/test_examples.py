"""The examples run: a plugged-in policy, PPO in one file, adapters to other frameworks' interfaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from paper import PaperEvaluator

import kb_env
from experiments.examples import ppo_cleanrl
from experiments.examples.annealing import Annealing
from experiments.rollout import play
from experiments.streams import Conditions, Stream, play_stream
from kb_env.env import CudaEnv
from kb_env.task import load_task
from kb_env.types import Status
from kb_env.wrappers import DiscreteEdits, FlatProfile


def paper_env(args: ppo_cleanrl.Args) -> gym.Env[Any, Any]:
    """As the example's, on paper."""
    env = kb_env.make(
        "kb/CudaSim-v0",
        task="gelu",
        evaluator=PaperEvaluator(),
        max_steps=args.episode,
        evaluate_on_reset=True,
    )
    return ppo_cleanrl.Masked(FlatProfile(DiscreteEdits(env)))


def test_a_policy_from_outside_plays_streams_and_repeats_itself() -> None:
    stream = Stream("annealing", "experiments.examples.annealing:Annealing", 3, ("gelu",))
    first, second = (list(play_stream(stream, PaperEvaluator(), Conditions(5))) for _ in range(2))
    assert [s.action for s in first[0].steps] == [s.action for s in second[0].steps]
    assert all(step.status is not Status.BAD_EDIT for step in first[0].steps)


def test_annealing_goes_back_from_much_slower_programs() -> None:
    class Slower(PaperEvaluator):
        """Every edit is ten times slower than the initial program."""

        def measure(self, prepared: Any, purpose: Any = None) -> Any:
            same = prepared.program == prepared.task.initial
            text = prepared.program.text + ("" if same else "\n// us: 10000")
            changed = type(prepared.program)(prepared.program.task, text)
            return super().measure(type(prepared)(**{**vars(prepared), "program": changed}), purpose)

    env = CudaEnv(task="gelu", evaluator=Slower(), max_steps=4, evaluate_on_reset=True)
    played = play(env, Annealing(heat=0.01), load_task("gelu"), 0)
    # Each step's edit is one move from the initial program, whatever stands there now.
    assert len({step.after.text for step in played.steps if step.after}) == len(played.steps) == 4
    assert played.best_speedup == 1.0


def test_advantages_are_the_textbooks() -> None:
    torch = pytest.importorskip("torch")
    rewards = torch.tensor([[1.0], [0.0], [2.0]])
    values = torch.tensor([[0.5], [0.25], [1.0]])
    ended = torch.tensor([[0.0], [1.0], [0.0]])
    found = ppo_cleanrl.advantages(rewards, values, ended, torch.tensor([3.0]), 0.5)
    third, second = 2.0 + 3.0 - 1.0, 0.0 - 0.25  # an ended episode has no value after it
    first = (1.0 + 0.25 - 0.5) + 0.5 * second
    assert found.flatten().tolist() == pytest.approx([first, second, third])


@pytest.mark.slow
def test_ppo_in_one_file_trains_on_an_async_vector() -> None:
    args = ppo_cleanrl.Args(tasks="gelu", steps=32, envs=2, rollout=8, episode=4)
    finals = ppo_cleanrl.train(args, paper_env)
    assert len(finals) == 8 and all(np.isfinite(finals))
