"""Rollouts on a private Ray: the same episodes as without it, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments import bench_chaos, cli
from experiments.bench_rollouts import FixedCost
from experiments.run_folder import timeless
from experiments.streams import Conditions, Stream, plan, play_stream
from kb_env.evaluators import DeviceUnfit, Prepared, Purpose
from kb_env.replay import Recorder, ReplayEvaluator
from kb_env.types import Episode, Evaluation

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TASKS = ("softmax", "gelu", "vector_add")
CONDITIONS = Conditions(steps=3)


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
            found[name] = timeless(episode)
    return found


def run_pool(recording: Path, workers: int, disturb: bool) -> dict[str, bytes]:
    """Episodes by name; with ``disturb`` processes are killed meanwhile, at least one of them at work."""
    killed: list[str] = []
    from experiments.ray_pool import PoolSpec, RayPool

    found: dict[str, bytes] = {}
    with RayPool(PoolSpec(f"replay:{recording}", workers, evaluators=workers)) as pool:
        if disturb:
            over = threading.Event()
            killer = threading.Thread(target=kill_workers, args=(killed, over))
            killer.start()
        counts: dict[Stream, int] = {}
        for stream, outcome in pool.run([(stream, []) for stream in streams()], CONDITIONS):
            assert isinstance(outcome, Episode), outcome
            place = counts.get(stream, 0)
            counts[stream] = place + 1
            name = stream.names[place]
            assert name not in found
            found[name] = timeless(outcome)
        if disturb:
            over.set()
            killer.join()
            assert killed, "nothing was there to kill"
    return found


def kill_workers(killed: list[str], over: threading.Event) -> None:
    """SIGKILL a few evaluator and rollout processes while they work."""
    for title in ("ray::run_stream", "ray::Measuring", "ray::run_stream"):
        time.sleep(0.7)
        while not over.is_set() and not strike(title, killed):
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


class Moody(FixedCost):
    """The first of its kind on this machine fails its own control; all say where they measured."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0.0)
        self.folder = folder
        try:
            (folder / "unfit").touch(exist_ok=False)
            self.fit = False
        except FileExistsError:
            self.fit = True

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        if not self.fit:
            raise DeviceUnfit("a program against itself came out 1.3")
        (self.folder / f"measured-{os.getpid()}").touch()
        return super().measure(prepared, purpose)

    def prepare(self, task: object, program: object) -> Prepared:
        (self.folder / f"prepared-{os.getpid()}").touch()
        return super().prepare(task, program)  # type: ignore[arg-type]


def test_unfit_devices_are_put_aside_and_poisoned_streams_stall_no_other(tmp_path: Path) -> None:
    from experiments.ray_pool import PoolSpec, RayPool

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this module
    good = [Stream("random", "random", seed, ("vector_add",)) for seed in range(3)]
    bad = [Stream("abort", "os:abort", 0, ("gelu",)), Stream("none", "no_such:Policy", 0, ("gelu",))]
    found: dict[str, object] = {}
    with RayPool(PoolSpec(partial(Moody, tmp_path), 2, evaluators=2)) as pool:
        for stream, outcome in pool.run([(item, []) for item in [*bad, *good]], Conditions(steps=2)):
            found[stream.names[0]] = outcome
        state = pool.state()
        busy = pool.load()
    assert len(found) == 5 and "3 rollouts were lost" in str(found[bad[0].names[0]])
    assert "no_such" in str(found[bad[1].names[0]])
    assert all(isinstance(found[item.names[0]], Episode) for item in good)
    assert state["aside"] == 1 and state["live"] == 1 and sum(count for _, count in busy) >= 4
    # Building is the rollouts' work and measuring the device's: no process does both.
    both = [
        {path.name.split("-")[1] for path in tmp_path.glob(f"{word}-*")} for word in ("prepared", "measured")
    ]
    assert len(both[1]) == 1 and both[0] and not both[0] & both[1]


def test_a_plan_under_fire_ends_as_undisturbed(recording: Path, tmp_path: Path) -> None:
    """A small round of bench_chaos: evaluator, node and driver killed on a cluster of three nodes."""
    tasks = ",".join(TASKS)
    words = [
        "compare",
        "--policies",
        "random,hillclimb,recall",
        "--tasks",
        tasks,
        "--seeds",
        "2",
        "--steps",
        "3",
    ]
    backend = f"replay:{recording}"
    assert cli.main([*words, "--backend", backend, "--out", str(tmp_path / "expected")]) == 0
    out = tmp_path / "chaos"
    code = bench_chaos.main(
        bench_chaos.Args(
            tmp_path / "expected", backend, rounds=1, cpus=1, workers=2, within=2.0, seed=1, out=out
        )
    )
    (facts,) = json.loads((out / "chaos.json").read_text())
    assert code == 0 and facts["ok"] and facts["starts"] >= 1 and facts["kills"]
