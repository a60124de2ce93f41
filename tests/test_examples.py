"""The examples run: a plugged-in policy, PPO in one file, adapters to other frameworks' interfaces."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from paper import PaperEvaluator

import kb_env
from experiments.examples import adapters, ppo_cleanrl
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


SETTINGS: dict[str, Any] = {"task": "gelu", "max_steps": 3, "evaluate_on_reset": True}
FASTER = "Half the time.\n```cuda\n// us: 500\nvoid launch();\n```"


def test_the_text_core_says_what_a_model_needs_and_pays_log_gains() -> None:
    core = adapters.TextCore(evaluator=PaperEvaluator(), **SETTINGS)
    prompt, info = core.reset(0)
    assert load_task("gelu").source.splitlines()[0] in prompt and "SEARCH" in prompt
    assert info["best_speedup"] == 1.0
    prompt, reward, done, info = core.step(FASTER)
    assert reward == pytest.approx(np.log(2.0)) and not done and "// us: 500" in prompt
    _, reward, done, info = core.step("submit")
    assert done and reward == 0.0 and info["best_speedup"] == pytest.approx(2.0)


def test_skyrl_gym_plays_it() -> None:
    pytest.importorskip("skyrl_gym")
    env = adapters.skyrl_env()(extras={"evaluator": PaperEvaluator(), "seed": 1, **SETTINGS})
    messages, _ = env.init([{"role": "system", "content": "first"}])
    assert [item["role"] for item in messages] == ["system", "user"]
    output = env.step(FASTER)
    assert output["reward"] == pytest.approx(np.log(2.0)) and not output["done"]
    assert env.step("submit")["done"] and env.turns == 2
    env.close()


def test_openenv_plays_it() -> None:
    pytest.importorskip("openenv")
    kind, answer = adapters.openenv_env()
    env = kind(evaluator=PaperEvaluator(), **SETTINGS)
    first = env.reset(seed=1, episode_id="e")
    assert "SEARCH" in first.prompt and not first.done
    second = env.step(answer(answer=FASTER))
    assert second.reward == pytest.approx(np.log(2.0)) and env.state.step_count == 1
    assert env.step(answer(answer="submit")).done
