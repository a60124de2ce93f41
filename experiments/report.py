"""``kb report DIR``: one self-contained HTML page of a run folder, readable without a network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jinja2
import tyro

from experiments.run_folder import RunFolder, episode_name, unified_diff, write_atomic
from kb_env.types import Episode, StepRecord


@dataclass(frozen=True)
class Args:
    """Write DIR/report.html and DIR/summary.json."""

    folder: Annotated[Path, tyro.conf.Positional]
    """a run folder made by kb run or kb compare"""
    json: bool = False
    """print one JSON object as the last line"""


def step_facts(step: StepRecord) -> dict[str, Any]:
    """What the page shows of one step."""
    evaluation = step.evaluation
    return {
        "index": step.index,
        "status": str(step.status),
        "speedup": step.speedup,
        "low": evaluation.speedup_low if evaluation else None,
        "high": evaluation.speedup_high if evaluation else None,
        "best": step.best_speedup,
        "reward": step.reward,
        "action": step.action,
        "feedback": step.feedback,
        "limiter": evaluation.limiter if evaluation else None,
        "cached": step.cached,
        "notes": dict(step.notes),
    }


def episode_facts(episode: Episode) -> dict[str, Any]:
    return {
        "name": episode_name(episode.task, episode.policy, episode.seed),
        "task": episode.task,
        "policy": episode.policy,
        "seed": episode.seed,
        "device": episode.device,
        "source": episode.source,
        "trust": episode.trust,
        "best": episode.best_speedup,
        "low": episode.best_low,
        "high": episode.best_high,
        "ended": episode.ended,
        "versions": dict(episode.versions),
        "diff": unified_diff(episode),
        "steps": [step_facts(step) for step in episode.steps],
        "chart": chart(episode),
    }


def chart(episode: Episode, width: int = 640, height: int = 200) -> dict[str, Any]:
    """Coordinates of the speedup per step and of the best so far, for inline SVG."""
    top = max([1.5, episode.best_speedup, *(step.speedup or 0.0 for step in episode.steps)])
    count = max(1, len(episode.steps))

    def point(index: int, value: float) -> tuple[float, float]:
        return round(40 + (width - 60) * index / count, 1), round(
            height - 25 - (height - 45) * value / top, 1
        )

    best = [point(0, 1.0), *(point(i + 1, step.best_speedup) for i, step in enumerate(episode.steps))]
    dots = [(*point(i + 1, step.speedup or 0.0), str(step.status)) for i, step in enumerate(episode.steps)]
    ticks = [(point(0, value)[1], f"{value:.2g}") for value in (0.0, 1.0, top)]
    return {
        "width": width,
        "height": height,
        "best": best,
        "dots": dots,
        "ticks": ticks,
        "one": point(0, 1.0)[1],
    }


def write_report(folder: RunFolder) -> Path:
    """Write the page and summary.json; returns the page's path."""
    episodes = [episode_facts(episode) for episode in folder.episodes()]
    templates = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates), autoescape=True, trim_blocks=True
    )
    page = environment.get_template("report.html").render(facts=folder.facts(), episodes=episodes)
    write_atomic(folder.path / "report.html", page.encode("utf-8", "replace"))
    keys = ("task", "policy", "seed", "device", "source", "trust", "best", "low", "high", "ended")
    rows = [{key: episode[key] for key in keys} | {"steps": len(episode["steps"])} for episode in episodes]
    write_atomic(folder.path / "summary.json", json.dumps({"episodes": rows}, indent=1).encode())
    return folder.path / "report.html"


def main(args: Args) -> int:
    page = write_report(RunFolder(args.folder))
    print(page)
    if args.json:
        print(json.dumps({"report": str(page)}))
    return 0
