"""RLlib's PPO, unmodified, on the catalogue of mechanical edits.

    pip install 'ray[rllib]'
    python experiments/examples/ppo_rllib.py --tasks transpose,gelu --iterations 20 --runners 2

Each environment runner is a Ray process with its own environment; RLlib knows no action masks here, so
an edit that does not apply is a failed step. Times are modelled unless --backend is a GPU. The
extra `ray[rllib]` pins an older gymnasium (1.2.2), which kb-env supports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import tyro
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import kb_env
from kb_env.wrappers import DiscreteEdits, FlatProfile


@dataclass(frozen=True)
class Args:
    """Train PPO with RLlib."""

    tasks: str = "transpose,gelu"
    """comma-separated tasks that reset draws from"""
    backend: str = "sim"
    """sim, sim:DEVICE or gpu"""
    iterations: int = 20
    """rounds of sampling and learning"""
    batch: int = 256
    """environment steps of a round"""
    runners: int = 0
    """processes that sample; 0: the learner's own"""
    episode: int = 4
    """steps of an episode"""


def make_env(config: dict[str, Any]) -> gym.Env[Any, Any]:
    """One environment; the inputs' seed is fixed, so that the simulator remembers programs."""
    args = Args(**config)
    env = kb_env.make(
        "kb/CudaSim-v0" if args.backend.startswith("sim") else "kb/Cuda-v0",
        suite=args.tasks.split(","),
        backend=args.backend,
        max_steps=args.episode,
        evaluate_on_reset=True,
        inputs_seed=0,
    )
    return FlatProfile(DiscreteEdits(env))


def train(args: Args, make: Callable[[dict[str, Any]], gym.Env[Any, Any]] = make_env) -> list[float]:
    """Train; returns the mean return (log of the verified speedup less failures' costs) of each round."""
    register_env("kb", make)
    config = (
        PPOConfig()
        .environment("kb", env_config=asdict(args))
        .env_runners(num_env_runners=args.runners)
        .training(
            train_batch_size_per_learner=args.batch,
            minibatch_size=min(64, args.batch),
            num_epochs=4,
            gamma=1.0,
        )
    )
    algorithm, returns = config.build_algo(), []
    try:
        for number in range(args.iterations):
            result = algorithm.train()
            returns.append(float(result["env_runners"].get("episode_return_mean", float("nan"))))
            print(f"round {number}: mean return {returns[-1]:.3f}", flush=True)
    finally:
        algorithm.stop()
    return returns


if __name__ == "__main__":
    chosen = tyro.cli(Args)
    print(json.dumps({"args": asdict(chosen), "returns": train(chosen)}))
