"""``kb bench costs``: what episodes with a language model cost, in tokens by part of the prompt.

From a run folder, or by playing policies against a scripted model on this machine that answers every
request for code with a mechanical edit of the program it was shown. Prompts are then those of a real run;
answers are shorter than a language model's, so their tokens are left to runs with one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.expert_model import Expert
from experiments.model_args import read_prices
from experiments.run_folder import RunFolder
from experiments.scripted_server import ScriptedServer
from experiments.streams import Conditions, plan, play_stream
from kb_env.backends import explain, make_evaluator
from kb_env.edits import diff_action
from kb_env.types import Episode
from policies.budget import Prices
from policies.chat import Settings
from policies.fitting import unnumbered
from policies.maicrl_words import LOWER_ROLE, PLAN_ROLE
from policies.moves import moves
from policies.turn import read_parts


@dataclass(frozen=True)
class Args:
    """Tokens of episodes by part."""

    folder: Annotated[Path | None, tyro.conf.Positional] = None
    """run folder to read; without one, policies are played against a scripted model"""
    policies: str = "oneshot,refine,evolve,maicrl"
    """comma-separated LLM policies to play"""
    tasks: str = "softmax,transpose,histogram"
    """comma-separated tasks"""
    steps: int = 10
    """steps of each episode"""
    backend: str = "auto"
    """auto, gpu, sim, sim:DEVICE or replay:FILE"""
    prices: str | None = None
    """IN,OUT: money per million tokens, for a column of money"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass(frozen=True)
class Cost:
    """Means over a policy's episodes. ``parts`` are planned prompt tokens by part, the others counted ones."""

    policy: str
    episodes: int
    requests: float
    prompt_tokens: float
    answer_tokens: float
    money: float
    parts: Mapping[str, float]


class Editor:
    """A scripted model: each request for code is answered with one of the program's mechanical edits.

    What ``maicrl`` asks is answered by its scripted expert, who knows six of the tasks.
    """

    _PROGRAM = re.compile(r"^## Current program\n(`{3,})cuda\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._expert = Expert()

    def __call__(self, request: Mapping[str, Any]) -> str:
        if request["messages"][0]["content"] in (PLAN_ROLE, LOWER_ROLE):
            return self._expert(request)
        found = self._PROGRAM.search(str(request["messages"][-1]["content"]))
        if found is None:
            return "I see no program."
        text = unnumbered(found[2]) + "\n"
        choices = moves(text)
        if not choices:
            return "Nothing is left to change."
        move = choices[int(self._rng.integers(len(choices)))]
        return f"I apply {move.technique}.\n{diff_action(text, move.text)}"


def costs(episodes: Iterable[Episode], prices: Prices = Prices()) -> list[Cost]:
    """One row a policy, of the episodes that asked a model."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if any("prompt_tokens" in step.notes for step in episode.steps):
            groups.setdefault(episode.policy, []).append(episode)
    return [cost(policy, group, prices) for policy, group in sorted(groups.items())]


def cost(policy: str, episodes: Sequence[Episode], prices: Prices) -> Cost:
    notes = [step.notes for episode in episodes for step in episode.steps]
    count = len(episodes)

    def mean(name: str) -> float:
        return sum(float(item.get(name, 0.0)) for item in notes) / count

    parts: dict[str, float] = {}
    for item in notes:
        for title, tokens in read_parts(item).items():
            kind = re.sub(r" \(.*| \d.*", "", title)  # titles that hold numbers are of one kind
            parts[kind] = parts.get(kind, 0.0) + tokens / count
    prompt, answer = mean("prompt_tokens"), mean("answer_tokens")
    money = (prompt * prices.prompt + answer * prices.answer) / 1e6 or mean("money")
    return Cost(policy, count, mean("requests"), prompt, answer, money, parts)


def play(args: Args) -> list[Episode]:
    """Episodes against the scripted model."""
    evaluator = make_evaluator(args.backend)
    print(f"a scripted model; {explain(args.backend)}", flush=True)
    found = []
    try:
        for stream in plan(args.policies.split(","), args.tasks.split(","), (0,)):
            with ScriptedServer(Editor()) as server:
                settings = {"chat": Settings("scripted", server.url, concurrency=1)}
                found += list(play_stream(stream, evaluator, Conditions(args.steps, settings=settings)))
    finally:
        evaluator.close()
    return found


def show(rows: Sequence[Cost]) -> None:
    console = Console(width=140)
    table = Table(title="per episode")
    for name in ("policy", "episodes", "requests", "prompt tokens", "answer tokens", "money"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(
            row.policy, str(row.episodes), f"{row.requests:.1f}", f"{row.prompt_tokens:.0f}",
            f"{row.answer_tokens:.0f}", f"{row.money:.4g}",
        )  # fmt: skip
    console.print(table)
    for row in rows:
        total = sum(row.parts.values()) or 1.0
        shares = sorted(row.parts.items(), key=lambda item: -item[1])
        words = ", ".join(f"{title} {tokens:.0f} ({tokens / total:.0%})" for title, tokens in shares)
        console.print(f"{row.policy}, planned prompt tokens by part: {words}", highlight=False)


def main(args: Args) -> int:
    prices = read_prices(args.prices) if args.prices is not None else Prices()
    episodes = list(RunFolder(args.folder).episodes()) if args.folder is not None else play(args)
    rows = costs(episodes, prices)
    show(rows)
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    return 0
