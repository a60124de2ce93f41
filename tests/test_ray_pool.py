"""Rollouts on a private Ray: the same episodes as without it, whatever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments.streams import Conditions, Stream, plan, play_stream
from kb_env.records import pack
from kb_env.replay import Recorder, ReplayEvaluator
from kb_env.types import Episode

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TASKS = ("softmax", "gelu", "vector_add")
CONDITIONS = Conditions(steps=3)


def bare(episode: Episode) -> bytes:
    """The episode without its clocks."""
    steps = tuple(replace(step, seconds={}) for step in episode.steps)
    return pack(replace(episode, steps=steps))


def streams() -> list[Stream]:
    return plan(["random", "hillclimb", "recall"], TASKS, range(2))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "recording"
    recorder = Recorder(PaperEvaluator(), path)
    for stream in streams():
        list(play_stream(stream, recorder, CONDITIONS))
    recorder.close()
    return path


@pytest.fixture(scope="module")
def expected(recording: Path) -> dict[str, bytes]:
    evaluator = ReplayEvaluator(recording)
    found = {}
    for stream in streams():
        for name, episode in zip(stream.names, play_stream(stream, evaluator, CONDITIONS), strict=True):
            found[name] = bare(episode)
    return found


def run_pool(recording: Path, workers: int, disturb: bool) -> dict[str, bytes]:
    """Episodes by name; with ``disturb`` processes are killed meanwhile, at least one of them at work."""
    killed: list[str] = []
    from experiments.ray_pool import PoolSpec, RayPool

    found: dict[str, bytes] = {}
    with RayPool(PoolSpec(f"replay:{recording}", workers, evaluators=workers)) as pool:
        if disturb:
            killer = threading.Thread(target=kill_workers, args=(killed,))
            killer.start()
        counts: dict[Stream, int] = {}
        for stream, outcome in pool.run([(stream, []) for stream in streams()], CONDITIONS):
            assert isinstance(outcome, Episode), outcome
            place = counts.get(stream, 0)
            counts[stream] = place + 1
            name = stream.names[place]
            assert name not in found
            found[name] = bare(outcome)
        if disturb:
            killer.join()
            assert killed, "nothing was there to kill"
    return found


def kill_workers(killed: list[str]) -> None:
    """SIGKILL a few evaluator and rollout processes while they work."""
    for title in ("ray::run_stream", "ray::Measuring", "ray::run_stream"):
        time.sleep(0.7)
        until = time.monotonic() + 5.0  # a loaded machine may be slow to start what is to be killed
        while time.monotonic() < until and not strike(title, killed):
            time.sleep(0.05)


def strike(title: str, killed: list[str]) -> bool:
    """SIGKILL one process of this run with that title; whether there was one."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(title.encode()) and descends(int(entry.name)):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(command.decode(errors="replace"))
                return True
    return False


def descends(process: int) -> bool:
    """Whether this process is among the ancestors of ``process``: another run's are never killed."""
    while process > 1:
        if process == os.getpid():
            return True
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            return False
        process = int(status.split("PPid:")[1].split()[0])
    return False


def test_the_pool_plays_the_same_episodes(recording: Path, expected: dict[str, bytes]) -> None:
    assert run_pool(recording, 2, disturb=False) == expected


def test_killed_evaluators_and_rollouts_lose_nothing(recording: Path, expected: dict[str, bytes]) -> None:
    assert run_pool(recording, 2, disturb=True) == expected
