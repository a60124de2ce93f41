"""Proximal policy optimization in one file, in the manner of CleanRL, on Gymnasium's own AsyncVectorEnv.

    python experiments/examples/ppo_cleanrl.py --tasks transpose,gelu --steps 2000 --envs 4

Actions are the catalogue's mechanical edits; those that do not apply are masked out of the policy's
distribution. Environments run in processes of their own. Prints the best verified speedup of the
episodes as they end; times are modelled unless --backend is a GPU. PPO: Schulman et al. 2017,
arXiv 1707.06347; invalid action masking: Huang and Ontanon 2020, arXiv 2006.14171.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

import kb_env
from kb_env.wrappers import DiscreteEdits, FlatProfile


@dataclass(frozen=True)
class Args:
    """Train one masked PPO policy."""

    tasks: str = "transpose,gelu"
    """comma-separated tasks that reset draws from"""
    backend: str = "sim"
    """sim, sim:DEVICE or gpu"""
    steps: int = 2000
    """environment steps in all"""
    envs: int = 4
    """environments side by side"""
    rollout: int = 16
    """steps of each environment between updates"""
    episode: int = 4
    """steps of an episode"""
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value_weight: float = 0.5
    seed: int = 0


def make_env(args: Args) -> gym.Env[Any, Any]:
    """One environment with numbers for actions and observations, its masks in ``info``."""
    # The inputs' seed is fixed: the simulator then remembers programs from episode to episode.
    env = kb_env.make(
        "kb/CudaSim-v0" if args.backend.startswith("sim") else "kb/Cuda-v0",
        suite=args.tasks.split(","),
        backend=args.backend,
        max_steps=args.episode,
        evaluate_on_reset=True,
        inputs_seed=0,
    )
    return Masked(FlatProfile(DiscreteEdits(env)))


class Masked(gym.Wrapper[Any, Any, Any, Any]):
    """Puts the action mask in front of the observation: one array crosses between processes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.actions = int(env.action_space.n)
        width = self.actions + env.observation_space.shape[0]
        self.observation_space = gym.spaces.Box(-64.0, 64.0, (width,), np.float32)

    def _with_mask(self, observation: np.ndarray) -> np.ndarray:
        mask = self.env.get_wrapper_attr("action_masks")()
        return np.concatenate([mask.astype(np.float32), observation])

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return self._with_mask(observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation), float(reward), terminated, truncated, info


class Agent(nn.Module):
    """Two small networks; actions that do not apply get no probability."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.actions = actions
        self.actor = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, actions))
        self.critic = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 1))

    def value(self, seen: Tensor) -> Tensor:
        return self.critic(seen[:, self.actions :]).squeeze(-1)

    def choices(self, seen: Tensor) -> Categorical:
        mask, features = seen[:, : self.actions] > 0.5, seen[:, self.actions :]
        return Categorical(logits=self.actor(features).masked_fill(~mask, -1e9))


def advantages(rewards: Tensor, values: Tensor, ended: Tensor, last: Tensor, lam: float) -> Tensor:
    """Generalized advantage estimation without discount: an episode's return is its log speedup."""
    found, carry = torch.zeros_like(rewards), torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        after = last if t == len(rewards) - 1 else values[t + 1]
        delta = rewards[t] + after * (1 - ended[t]) - values[t]
        carry = delta + lam * (1 - ended[t]) * carry
        found[t] = carry
    return found


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], args: Args) -> float:
    """Some epochs of clipped updates; returns the last loss."""
    count, loss = len(batch["action"]), torch.zeros(())
    for _ in range(args.epochs):
        for rows in torch.randperm(count).chunk(args.minibatches):
            choices = agent.choices(batch["seen"][rows])
            ratio = (choices.log_prob(batch["action"][rows]) - batch["log_prob"][rows]).exp()
            gain = batch["advantage"][rows]
            gain = (gain - gain.mean()) / (gain.std(unbiased=False) + 1e-8)
            kept = torch.minimum(ratio * gain, ratio.clamp(1 - args.clip, 1 + args.clip) * gain)
            error = (agent.value(batch["seen"][rows]) - batch["target"][rows]).square().mean()
            loss = -kept.mean() + args.value_weight * error - args.entropy * choices.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    return loss.item()


def train(args: Args, make: Callable[[Args], gym.Env[Any, Any]] = make_env) -> list[float]:
    """Train; returns the best verified speedup of every episode in order of their ends."""
    torch.manual_seed(args.seed)
    # Same-step autoreset: the last step's info is the episode's own.
    envs = gym.vector.AsyncVectorEnv(
        [partial(make, args)] * args.envs,
        context="spawn",
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    width, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = Agent(width - actions, actions)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    finals: list[float] = []
    try:
        seen = torch.as_tensor(envs.reset(seed=args.seed)[0])
        for _ in range(max(1, args.steps // (args.envs * args.rollout))):
            names = ("seen", "action", "log_prob", "value", "reward", "ended")
            kept: dict[str, list[Tensor]] = {name: [] for name in names}
            for _ in range(args.rollout):
                with torch.no_grad():
                    choices, value = agent.choices(seen), agent.value(seen)
                    action = choices.sample()
                after, reward, terminated, truncated, info = envs.step(action.numpy())
                ended = terminated | truncated
                finals += list(info["final_info"]["best_speedup"][ended]) if ended.any() else []
                row = (seen, action, choices.log_prob(action), value)
                for name, item in zip(("seen", "action", "log_prob", "value"), row, strict=True):
                    kept[name].append(item)
                kept["reward"].append(torch.as_tensor(reward, dtype=torch.float32))
                kept["ended"].append(torch.as_tensor(ended, dtype=torch.float32))
                seen = torch.as_tensor(after)
            rows = {name: torch.stack(items) for name, items in kept.items()}
            with torch.no_grad():
                last = agent.value(seen)
            gain = advantages(rows["reward"], rows["value"], rows["ended"], last, args.gae_lambda)
            batch = {name: rows[name].flatten(0, 1) for name in ("seen", "action", "log_prob")}
            batch |= {"advantage": gain.flatten(), "target": (gain + rows["value"]).flatten()}
            loss = update(agent, optimizer, batch, args)
            recent = float(np.exp(np.mean(np.log(finals[-50:])))) if finals else 1.0
            print(f"{len(finals)} episodes, last 50: {recent:.3f}, loss {loss:.3f}", flush=True)
    finally:
        envs.close()
    return finals


if __name__ == "__main__":
    chosen = tyro.cli(Args)
    bests = train(chosen)
    print(json.dumps({"args": vars(chosen), "episodes": len(bests), "best": max(bests, default=1.0)}))
