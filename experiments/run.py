"""``kb run TASK``: one policy on one task; ends with a verified speedup, a diff and a report."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from experiments.model_args import NO_MODEL, ModelOptions, chat_settings
from experiments.report import write_report
from experiments.rollout import play
from experiments.run_folder import RunFolder, unified_diff
from kb_env.backends import explain, make_evaluator
from kb_env.env import CudaEnv
from kb_env.evaluators import Evaluator
from kb_env.observe import clean
from kb_env.show import footer, header, row
from kb_env.task import load_task
from kb_env.types import Episode
from kb_env.versions import versions
from memory.store import Memory
from policies.chat import Chat, Settings
from policies.judge_soft import SoftJudged
from policies.policy import Policy, make_policy
from policies.recall import TechniqueMemory


@dataclass(frozen=True)
class Args:
    """Run one policy on one task and keep everything in a run folder."""

    task: Annotated[str, tyro.conf.Positional]
    """a built-in task's name or a task folder"""
    policy: str = "hillclimb"
    """random, hillclimb, tune, script:FILE, refine, ..., or module:Class"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE or replay:FILE"""
    steps: int = 20
    """step limit of the episode"""
    seed: int = 0
    """seed of policy and environment"""
    out: Path | None = None
    """run folder (default: runs/TASK-POLICY-TIME)"""
    memory: Path | None = None
    """folder of an episodic memory to recall from and add to"""
    llm: ModelOptions = NO_MODEL
    """the model of an LLM policy"""
    soft_judge: str | None = None
    """MODEL or MODEL@URL that looks at verified programs for special cases; it can only lower trust"""
    record: Path | None = None
    """append every evaluation to this file, for --backend replay:FILE"""
    json: bool = False
    """print one JSON object as the last line"""


def policy_of(args: Args, memory: Memory | None, device: str, source: str) -> Policy:
    """The policy with the settings the user gave, and the memory in the form it asks for."""
    settings: dict[str, Any] = dict(chat_settings(args.llm))
    name, _, files = args.policy.partition(":")
    if name == "script":
        settings["actions"] = tuple(Path(file) for file in files.split(",") if file)
    elif name == "hillclimb" and memory is not None:
        settings["memory"] = TechniqueMemory(memory, device, source)
    else:
        settings["memory"] = memory
    given = {key: value for key, value in settings.items() if value is not None}
    return make_policy(name if name == "script" else args.policy, **given)


def judged(evaluator: Evaluator, args: Args) -> Evaluator:
    """The evaluator with a soft judge behind it, where one is asked for.

    Limits, prices, cassette and replay hold for it too; a key file only where it asks the same endpoint.
    """
    if args.soft_judge is None:
        return evaluator
    name, _, url = args.soft_judge.partition("@")
    given = chat_settings(args.llm).get("chat", Settings(""))
    key_file = given.key_file if given.base_url == (url or None) else None
    settings = Settings(
        name,
        url or None,
        key_file=key_file,
        timeout=given.timeout,
        prices=given.prices,
        limits=given.limits,
        cassette=given.cassette,
        replay=given.replay,
    )
    return SoftJudged(evaluator, Chat(settings))


def doubts(episode: Episode) -> list[str]:
    """What the soft judge objected to, a line a step; the best program's step says so."""
    found = []
    for step in episode.steps:
        if step.evaluation is not None and step.evaluation.trust == "doubted":
            best = ", THE BEST PROGRAM" if step.after == episode.best else ""
            found.append(f"step {step.index + 1}{best} is doubted: {step.evaluation.health['soft_judge']}")
    return found


def result(episode: Episode, folder: Path, seconds: float) -> dict[str, Any]:
    """The run's outcome as flat facts."""
    return {
        "task": episode.task,
        "policy": episode.policy,
        "seed": episode.seed,
        "trust": episode.trust,
        "source": episode.source,
        "device": episode.device,
        "best_speedup": episode.best_speedup,
        "best_low": episode.best_low,
        "best_high": episode.best_high,
        "steps": len(episode.steps),
        "ended": episode.ended,
        "doubted": len(doubts(episode)),
        "seconds": round(seconds, 2),
        "folder": str(folder),
    }


def show_diff(console: Console, diff: str) -> None:
    """The diff with its added and removed lines coloured, never wrapped or cut."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in diff.splitlines() or ["(no change)"]:
        console.print(Text(clean(line), styles.get(line[:1], "")))


def main(args: Args) -> int:
    task = load_task(args.task)
    memory = Memory(args.memory) if args.memory is not None else None
    evaluator = judged(make_evaluator(args.backend, record=args.record), args)
    policy = policy_of(args, memory, evaluator.device, evaluator.source)
    folder = RunFolder(
        args.out or Path("runs") / f"{task.name}-{policy.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    console = Console(file=sys.stdout, soft_wrap=True)
    console.print(f"{task.title}: policy {policy.name}, {explain(args.backend)}", highlight=False)
    folder.begin({"args": dataclasses.asdict(args), "versions": versions(), "task_key": task.key})
    started = time.perf_counter()

    def on_step(episode: Episode) -> None:
        folder.save(episode)
        if len(episode.steps) == 1:
            console.print(header(episode), highlight=False, markup=False)
        console.print(row(episode.steps[-1]), highlight=False, markup=False)

    env = CudaEnv(task=task, evaluator=evaluator, max_steps=args.steps, evaluate_on_reset=True)
    try:
        episode = play(env, policy, task, args.seed, on_step)
        folder.finish(episode)  # before learning, which may fail: it may ask a model
        if memory is not None:
            print(f"memory: {memory.learn(episode, task)} steps remembered in {args.memory}")
        policy.learn([episode])
        if memory is not None:
            memory.close()
    finally:
        env.close()
        evaluator.close()
    page = write_report(folder)
    facts = result(episode, folder.path, time.perf_counter() - started)
    show_diff(console, unified_diff(episode))
    console.print(footer(episode), highlight=False, markup=False)
    for line in doubts(episode):
        console.print(clean(line), highlight=False, markup=False)
    console.print(
        f"{episode.source}, {episode.trust}, {episode.device}; {len(episode.steps)} steps; report: {page}",
        highlight=False,
    )
    if args.json:
        print(json.dumps(facts))
    return 0
