"""PPO, MaskablePPO and masked uniform random on the simulator, unmodified from public libraries.

    python experiments/examples/ppo_sb3.py --steps 10000 --seeds 5 --tasks transpose,softmax,row_sum

All learners take the same number of environment steps; each is then scored by the best confirmed
speedup of its episodes in the last fifth of its steps. Times are modelled.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

import kb_env
from experiments.metrics import bootstrap
from kb_env.wrappers import DiscreteEdits, FlatProfile, core


@dataclass(frozen=True)
class Args:
    """Train on the simulator and compare with masked random."""

    tasks: str = "transpose,softmax,row_sum"
    """comma-separated tasks that reset draws from"""
    steps: int = 10_000
    """environment steps of each run"""
    seeds: int = 5
    """runs of each learner"""
    episode: int = 6
    """steps of an episode"""
    device: str = "cpu"
    """where the networks live"""


def make_env(args: Args) -> gym.Env[Any, Any]:
    env = kb_env.make(
        "kb/CudaSim-v0", suite=args.tasks.split(","), max_steps=args.episode, evaluate_on_reset=True
    )
    return Monitor(FlatProfile(DiscreteEdits(env)))


class Finals(BaseCallback):
    """Collects the log of each episode's best speedup."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[float] = []

    def _on_step(self) -> bool:
        if self.locals["dones"][0]:
            self.logs.append(np.log(self.locals["infos"][0]["best_speedup"]))
        return True


def learn(kind: Any, args: Args, seed: int) -> list[float]:
    """Train one learner; log best speedup of every episode."""
    finals = Finals()
    model = kind(
        "MlpPolicy", make_env(args), seed=seed, device=args.device, n_steps=256, batch_size=64, gamma=1.0
    )
    model.learn(args.steps, callback=finals)
    model.get_env().close()
    return finals.logs


def uniform(args: Args, seed: int) -> list[float]:
    """Uniform over the actions that apply, for the same number of steps."""
    rng, env, logs = np.random.default_rng(seed), make_env(args), []
    env.reset(seed=seed)
    for _ in range(args.steps):
        mask = env.get_wrapper_attr("action_masks")()
        _, _, terminated, truncated, _ = env.step(int(rng.choice(np.flatnonzero(mask))))
        if terminated or truncated:
            logs.append(float(np.log(core(env).episode.best_speedup)))
            env.reset()
    env.close()
    return logs


def main(args: Args) -> None:
    learners = {"ppo": PPO, "maskable_ppo": MaskablePPO, "uniform": None}
    scores: dict[str, list[float]] = {name: [] for name in learners}
    for seed in range(args.seeds):
        for name, kind in learners.items():
            started = time.perf_counter()
            logs = uniform(args, seed) if kind is None else learn(kind, args, seed)
            last = logs[-max(1, len(logs) // 5) :]
            scores[name].append(float(np.mean(last)))
            spent = time.perf_counter() - started
            print(f"{name} seed {seed}: {np.exp(scores[name][-1]):.3f} modelled, {spent:.0f} s", flush=True)
    result: dict[str, Any] = {"args": vars(args), "log_speedup": scores, "source": "modelled"}
    for name in ("ppo", "maskable_ppo"):
        gap = np.array(scores[name]) - np.array(scores["uniform"])
        result[f"{name} - uniform"] = bootstrap({"all": gap})
    print(json.dumps(result))


if __name__ == "__main__":
    main(tyro.cli(Args))
