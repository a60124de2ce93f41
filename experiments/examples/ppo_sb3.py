"""PPO, MaskablePPO and masked uniform random on the simulator, unmodified from public libraries.

    python experiments/examples/ppo_sb3.py --steps 10000 --seeds 5 --tasks transpose,gelu --out runs/ppo

Every run takes the same number of environment steps. Two scores: the *final* one is the mean over the
episodes in the last fifth of the steps of the log of the episode's best verified speedup (what the
policy does by then); the *found* one is the best verified speedup that any episode of the run saw,
mean of logs over the tasks. Differences to uniform come with Welch's 95 % interval over seeds. Inputs
are seeded alike everywhere, so that runs share evaluations through a folder; a run that was stopped
is played again from it in a minute, and finished runs are not repeated. Times are modelled.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from sb3_contrib import MaskablePPO
from scipy import stats
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

import kb_env
from kb_env.files import write_atomic
from kb_env.remember import Remembering
from kb_env.sim.evaluator import SimEvaluator
from kb_env.wrappers import DiscreteEdits, FlatProfile, core

LEARNERS: dict[str, Any] = {"ppo": PPO, "maskable_ppo": MaskablePPO, "uniform": None}


@dataclass(frozen=True)
class Args:
    """Train on the simulator and compare with masked random."""

    tasks: str = "transpose,gelu"
    """comma-separated tasks that reset draws from"""
    steps: int = 10_000
    """environment steps of each run, a multiple of 250"""
    seeds: int = 5
    """runs of each learner"""
    episode: int = 3
    """steps of an episode"""
    entropy: float = 0.01
    """entropy bonus of the learners"""
    device: str = "cpu"
    """where the networks live"""
    workers: int = 1
    """runs at a time, a process each"""
    out: Path = Path("runs/ppo_sb3")
    """finished runs and evaluations; the same folder goes on where it was stopped"""


@dataclass
class Run:
    """Log of the best verified speedup of each episode, its task and the steps taken by its end."""

    logs: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, env: gym.Env[Any, Any], step: int) -> None:
        episode = core(env).episode
        self.logs.append(float(np.log(episode.best_speedup)))
        self.tasks.append(episode.task)
        self.steps.append(step)

    def final(self, steps: int) -> float:
        """Mean over the episodes that ended in the last fifth of the steps."""
        return float(
            np.mean([log for log, at in zip(self.logs, self.steps, strict=True) if at > 0.8 * steps])
        )

    def found(self) -> float:
        """Mean over tasks of the best of all episodes."""
        best: dict[str, float] = {}
        for task, log in zip(self.tasks, self.logs, strict=True):
            best[task] = max(best.get(task, 0.0), log)
        return float(np.mean(list(best.values())))


class Noting(gym.Wrapper[Any, Any, Any, Any]):
    """Notes every episode that ends."""

    def __init__(self, env: gym.Env[Any, Any], run: Run) -> None:
        super().__init__(env)
        self.run, self.taken = run, 0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.taken += 1
        if result[2] or result[3]:
            self.run.note(self.env, self.taken)
        return result


def make_env(args: Args, run: Run) -> gym.Env[Any, Any]:
    evaluator = Remembering(SimEvaluator(), args.out / "evaluations")
    env = kb_env.make(
        "kb/CudaSim-v0",
        suite=args.tasks.split(","),
        max_steps=args.episode,
        evaluate_on_reset=True,
        inputs_seed=0,
        evaluator=evaluator,
    )
    return Monitor(Noting(FlatProfile(DiscreteEdits(env)), run))


class Progress(BaseCallback):
    """A line every 500 steps."""

    def __init__(self, name: str, run: Run) -> None:
        super().__init__()
        self.name, self.run = name, run

    def _on_step(self) -> bool:
        report(self.name, self.num_timesteps, self.run)
        return True


def report(name: str, step: int, run: Run) -> None:
    if step % 500 == 0:
        print(f"{name} step {step}: {np.exp(np.mean(run.logs[-100:])):.3f} modelled", flush=True)


def uniform(env: gym.Env[Any, Any], name: str, run: Run, args: Args, seed: int) -> None:
    """Uniform over the actions that apply."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    for step in range(1, args.steps + 1):
        mask = env.get_wrapper_attr("action_masks")()
        _, _, terminated, truncated, _ = env.step(int(rng.choice(np.flatnonzero(mask))))
        report(name, step, run)
        if terminated or truncated:
            env.reset()


def play(name: str, args: Args, seed: int) -> Run:
    """One learner with one seed, from its file if it was finished before."""
    path = args.out / f"{name}_{seed}.json"
    if path.exists():
        return Run(**json.loads(path.read_text()))
    torch.set_num_threads(1)
    run, started = Run(), time.perf_counter()
    env, label = make_env(args, run), f"{name} seed {seed}"
    try:
        if LEARNERS[name] is None:
            uniform(env, label, run, args, seed)
        else:
            settings = {"n_steps": 250, "batch_size": 50, "gamma": 1.0, "ent_coef": args.entropy}
            model = LEARNERS[name]("MlpPolicy", env, seed=seed, device=args.device, **settings)
            model.learn(args.steps, callback=Progress(label, run))
    finally:
        core(env).evaluator.close()
        env.close()
    run.seconds = time.perf_counter() - started
    write_atomic(path, json.dumps(asdict(run)).encode())
    return run


def difference(first: list[float], second: list[float]) -> dict[str, float]:
    """Difference of means with Welch's 95 % interval."""
    gap = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    return {"mean": float(np.mean(first) - np.mean(second)), "low": float(gap.low), "high": float(gap.high)}


def summary(args: Args, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Logs of speedups by learner and score, and the differences to uniform."""
    scores = {
        "final": {name: [run.final(args.steps) for run in found] for name, found in runs.items()},
        "found": {name: [run.found() for run in found] for name, found in runs.items()},
    }
    result: dict[str, Any] = {"source": "modelled", "log_speedup": scores}
    for score, found in scores.items():
        for name in ("ppo", "maskable_ppo"):
            result[f"{score}: {name} - uniform"] = difference(found[name], found["uniform"])
    result["seconds"] = {name: [round(run.seconds) for run in found] for name, found in runs.items()}
    return result


def check_settings(args: Args) -> None:
    """Runs of other settings are not mixed into a folder."""
    if args.steps % 250:
        raise SystemExit("--steps must be a multiple of 250, the steps of one update")
    path = args.out / "settings.json"
    wanted = {name: getattr(args, name) for name in ("tasks", "steps", "episode", "entropy")}
    if path.exists() and json.loads(path.read_text()) != wanted:
        raise SystemExit(f"{args.out} holds runs of other settings: choose another --out")
    write_atomic(path, json.dumps(wanted).encode())


def main(args: Args) -> None:
    check_settings(args)
    jobs = [(name, seed) for seed in range(args.seeds) for name in ("uniform", "maskable_ppo", "ppo")]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, mp_context=spawn) as pool:
        waiting = [(name, pool.submit(play, name, args, seed)) for name, seed in jobs]
        runs: dict[str, list[Run]] = {name: [] for name in LEARNERS}
        for name, job in waiting:
            runs[name].append(job.result())
    result = summary(args, runs)
    write_atomic(args.out / "result.json", json.dumps(result).encode())
    print(json.dumps(result))


if __name__ == "__main__":
    main(tyro.cli(Args))
