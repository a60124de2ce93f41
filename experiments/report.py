"""``kb report DIR``: one self-contained HTML page of a run folder, readable without a network.

Candidates wrote much of what it shows. Their text is escaped, stripped of control and direction
characters, and cut; and the page's policy lets no script run but its own, named by its hash.
"""

from __future__ import annotations

import base64
import dataclasses
import difflib
import hashlib
import itertools
import json
import math
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jinja2
import tyro

from experiments.figures import by_policy, costs, draw, endings, task_bars, techniques
from experiments.metrics import Summary, summarize
from experiments.run_folder import RunFolder, episode_name, lean, unified_diff
from kb_env.files import write_atomic
from kb_env.observe import legible
from kb_env.types import Episode, KbError, StepRecord


@dataclass(frozen=True)
class Args:
    """Write DIR/report.html, DIR/summary.json and the charts as DIR/charts/*.svg."""

    folder: Annotated[Path, tyro.conf.Positional]
    """a run folder made by kb run or kb compare"""
    watch: bool = False
    """write the page again whenever an episode is added, until interrupted"""
    png: bool = False
    """write the charts as PNG as well (needs Chromium)"""
    every: float = 5.0
    """seconds between looks, with --watch"""
    json: bool = False
    """print one JSON object as the last line"""


#: Episodes whose steps are on the page; of more, the table has the rows and the folder the rest.
DETAILED = 250
#: Characters shown of one action, diff or feedback; the whole is in the episode's file.
SHOWN = 12_000


def visible(text: object) -> str:
    """Text with control, surrogate and direction characters as U+FFFD, cut to SHOWN characters."""
    whole = str(text)
    kept = legible(whole[:SHOWN])
    return kept if len(whole) <= SHOWN else f"{kept}\n(cut: {len(whole) - SHOWN} more characters)"


def step_diff(step: StepRecord) -> str:
    """What the step's edit changed."""
    if step.after is None:
        return "(the edit did not apply)"
    before, after = step.before.text.splitlines(), step.after.text.splitlines()
    return "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm=""))


def profile_facts(step: StepRecord) -> dict[str, str]:
    """The profile's source and the numbers that it has."""
    profile = step.evaluation.profile if step.evaluation is not None else None
    if profile is None:
        return {}
    numbers = {k: v for k, v in dataclasses.asdict(profile).items() if isinstance(v, float)}
    return {"source": profile.source} | {k: f"{v:.4g}" for k, v in numbers.items() if not math.isnan(v)}


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
        "diff": step_diff(step),
        "profile": profile_facts(step),
        "feedback": step.feedback,
        "limiter": evaluation.limiter if evaluation else None,
        "cached": step.cached,
        "prompt": str(step.notes.get("prompt", "")),
        "notes": {name: value for name, value in step.notes.items() if name != "prompt"},
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


def filters(episodes: Sequence[Episode]) -> list[tuple[str, int, list[str]]]:
    """(name, column, choices) of the page's drop-down filters."""
    return [
        (name, column, sorted({visible(getattr(episode, name)) for episode in episodes}))
        for name, column in (("task", 0), ("policy", 1), ("ended", 5))
    ]


def row_facts(episode: Episode) -> dict[str, Any]:
    """What the table of episodes shows of one."""
    return {
        "name": episode_name(episode.task, episode.policy, episode.seed),
        "task": episode.task,
        "policy": episode.policy,
        "seed": episode.seed,
        "best": episode.best_speedup,
        "steps": len(episode.steps),
        "ended": episode.ended,
    }


def render(
    facts: dict[str, Any], episodes: Sequence[Episode], detailed: Iterable[Episode], refresh: float | None
) -> str:
    """The page's text, with the steps of ``detailed``; with ``refresh`` the browser loads it again."""
    templates = Path(__file__).parent / "templates"
    script = (templates / "report.js").read_text()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        trim_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else visible(value),
    )
    return environment.get_template("report.html").render(
        facts=facts,
        rows=[row_facts(episode) for episode in episodes],
        episodes=[episode_facts(episode) for episode in detailed],
        sources=sorted({episode.source for episode in episodes}),
        policies=sorted(summaries(episodes), key=lambda row: -row.geomean),
        charts=draw(episodes),
        tasks=task_bars(by_policy(episodes)),
        costs=costs(by_policy(episodes)),
        endings=endings(by_policy(episodes)),
        filters=filters(episodes),
        refresh=refresh,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def write_report(folder: RunFolder, refresh: float | None = None) -> Path:
    """Write the page, summary.json and the charts; returns the page's path."""
    episodes = [lean(episode) for episode in folder.episodes()]
    detailed = itertools.islice(folder.episodes(), DETAILED)
    page = render(folder.facts(), episodes, detailed, refresh)
    write_atomic(folder.path / "report.html", page.encode("utf-8", "replace"))
    for name, svg in draw(episodes).items():
        write_atomic(folder.path / "charts" / f"{name}.svg", visible_svg(svg))
    write_atomic(folder.path / "summary.json", json.dumps(summary(episodes), indent=1).encode())
    return folder.path / "report.html"


def summaries(episodes: Sequence[Episode]) -> list[Summary]:
    """A row per policy."""
    steps = max((len(episode.steps) for episode in episodes), default=0)
    return [summarize(name, group, steps) for name, group in by_policy(episodes).items()]


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    """The numbers of the page as plain data; absent is null."""
    keys = ("task", "policy", "seed", "device", "source", "trust", "ended")
    rows = [
        {key: getattr(episode, key) for key in keys}
        | {"best": episode.best_speedup, "low": episode.best_low, "high": episode.best_high}
        | {"steps": len(episode.steps)}
        for episode in episodes
    ]
    groups = by_policy(episodes)
    policies = [dataclasses.asdict(row) for row in summaries(episodes)]
    for policy in policies:
        policy.update({k: None for k, v in policy.items() if isinstance(v, float) and math.isnan(v)})
    return {
        "policies": policies,
        "episodes": rows,
        "tasks": [dataclasses.asdict(bar) for bar in task_bars(groups)],
        "techniques": techniques(episodes),
        "costs": costs(groups),
        "endings": endings(groups),
    }


def write_png(svg: Path) -> Path:
    """A chart as PNG beside its SVG file, drawn by Chromium.

    Raises:
        KbError: if there is none, or it does not draw.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise KbError("no Chromium on this machine: install it, or use the charts as SVG")
    _, _, width, height = ElementTree.parse(svg).getroot().attrib["viewBox"].split()
    png = svg.with_suffix(".png")
    with tempfile.TemporaryDirectory() as profile:
        # The file holds only what this module drew; as root Chromium has no sandbox of its own.
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--force-device-scale-factor=2", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command += [f"--window-size={width},{height}", f"--screenshot={png.resolve()}"]
        found = subprocess.run(
            [*command, svg.resolve().as_uri()], check=False, capture_output=True, timeout=120
        )
    if found.returncode or not png.exists():
        raise KbError(f"{browser} did not draw {svg}: use the charts as SVG")
    return png


def visible_svg(svg: str) -> bytes:
    """A chart as a file: XML allows no control characters."""
    return "".join(char for char in svg if char >= " ").encode("utf-8", "replace")


def watch(folder: RunFolder, every: float) -> None:
    """Rewrite the page when an episode file changes; ends by interruption, with a page that rests."""
    seen: object = None
    try:
        while True:
            files = (folder.path / "episodes").glob("*.msgpack")
            now = sorted((file.name, file.stat().st_mtime_ns) for file in files)
            if now != seen:
                print(f"{write_report(folder, refresh=every)}: {len(now)} episodes", flush=True)
                seen = now
            time.sleep(every)
    finally:
        write_report(folder)


def main(args: Args) -> int:
    folder = RunFolder(args.folder)
    if args.watch:
        watch(folder, max(args.every, 0.2))
    page = write_report(folder)
    print(page)
    if args.png:
        for svg in sorted((args.folder / "charts").glob("*.svg")):
            print(write_png(svg))
    if args.json:
        print(json.dumps({"report": str(page)}))
    return 0
