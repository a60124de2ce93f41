"""Rollouts in processes without Ray: the same episodes, whoever dies, and one measurement at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments import workers
from experiments.leased import Device, kind_of
from experiments.run_folder import RunFolder, timeless
from experiments.streams import Conditions, Stream, plan, play_stream
from experiments.workers import WorkerPool
from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.replay import ReplayEvaluator
from kb_env.task import load_task
from kb_env.types import Episode, Evaluation, KbError, Program

CONDITIONS = Conditions(steps=3)
PLAN = plan(["random", "recall"], ("softmax", "gelu", "vector_add"), range(2))


def expected(streams: list[Stream], evaluator: Evaluator) -> dict[str, bytes]:
    return {
        name: timeless(episode)
        for stream in streams
        for name, episode in zip(stream.names, play_stream(stream, evaluator, CONDITIONS), strict=True)
    }


def played(pool: WorkerPool, streams: list[Stream]) -> tuple[dict[str, bytes], list[str]]:
    found: dict[str, bytes] = {}
    failures: list[str] = []
    for stream, outcome in pool.run([(stream, []) for stream in streams], CONDITIONS):
        if isinstance(outcome, str):
            failures.append(outcome)
            continue
        name = next(n for n, t in zip(stream.names, stream.tasks, strict=True) if t == outcome.task)
        assert name not in found
        found[name] = timeless(outcome)
    return found, failures


def test_workers_play_the_same_episodes_and_record_them(tmp_path: Path) -> None:
    whole = expected(PLAN, PaperEvaluator())
    with WorkerPool(PaperEvaluator, 3, record=str(tmp_path / "recording")) as pool:
        assert played(pool, PLAN) == (whole, [])
        assert pool.load() == []
    assert expected(PLAN, ReplayEvaluator(tmp_path / "recording")) == whole


@dataclass
class Exclusive(PaperEvaluator):
    """Fails if two measurements overlap."""

    inside: int = 0

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        self.inside += 1
        assert self.inside == 1
        time.sleep(0.01)
        self.inside -= 1
        return super().measure(prepared, purpose)


def test_devices_measure_for_all_workers_one_at_a_time() -> None:
    devices = [Exclusive(), Exclusive()]
    with WorkerPool(PaperEvaluator, 4, devices=devices) as pool:
        assert played(pool, PLAN) == (expected(PLAN, PaperEvaluator()), [])
        busy = pool.load()
    assert len(busy) == 2 and all(count > 0 and seconds > 0 for seconds, count in busy)
    assert sum(count for _, count in busy) == sum(len(device.calls) for device in devices)


def test_a_device_measures_a_tasks_first_program_once() -> None:
    paper, task = PaperEvaluator(source="measured"), load_task("softmax")
    device = Device(paper)
    first = paper.prepare(task, task.initial)
    again = [device.measure(first, Purpose(profile=True, seed=seed)) for seed in range(3)]
    assert len(paper.calls) == 1 and again[0] is again[2]
    other = paper.prepare(task, Program("softmax", "// us: 500"))
    for _ in range(2):
        device.measure(other, Purpose())
        device.measure(first, Purpose(baseline=other.program, baseline_name="best"))
    assert len(paper.calls) == 5


def test_devices_of_two_kinds_are_refused() -> None:
    with pytest.raises(KbError, match="different kinds"):
        WorkerPool(PaperEvaluator, 1, devices=[PaperEvaluator(), PaperEvaluator(device="Other")])
    assert kind_of(PaperEvaluator()).architecture == ""


def test_a_killed_worker_costs_nothing_and_a_poisoned_stream_stalls_no_other() -> None:
    slow = partial(Slow, 0.05)
    poison = Stream("poison", "os:abort", 0, ("softmax",))  # making this policy kills the worker
    broken = Stream("broken", "no_such_module:Policy", 0, ("softmax",))
    killed: list[int] = []

    def kill() -> None:
        time.sleep(1.0)
        until = time.monotonic() + 20
        while time.monotonic() < until and len(killed) < 2:
            for worker in list(pool._workers):
                if worker.stream is not None and worker.stream.remembers and len(worker.done) == 1:
                    os.kill(worker.process.pid, signal.SIGKILL)
                    killed.append(worker.process.pid)
                    time.sleep(0.2)
            time.sleep(0.01)

    with WorkerPool(slow, 3) as pool:
        killer = threading.Thread(target=kill)
        killer.start()
        found, failures = played(pool, [poison, broken, *PLAN])
        killer.join()
    assert found == expected(PLAN, PaperEvaluator())
    assert len(failures) == 2 and killed
    assert any("3 workers were lost" in why for why in failures)
    assert any("cannot load policy" in why for why in failures)


@dataclass
class Slow(PaperEvaluator):
    """Takes its time: the seconds come first so that ``partial`` can set them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        time.sleep(self.seconds)
        return super().measure(prepared, purpose)


def test_a_silent_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "REPEATS", 1)
    forever = Stream("forever", "signal:pause", 0, ("softmax",))  # making this policy never ends
    with WorkerPool(PaperEvaluator, 2, silence=10.0) as pool:
        found, failures = played(pool, [forever, PLAN[0]])
    assert set(found) == set(PLAN[0].names) and len(failures) == 1 and "said nothing" in failures[0]


class Broken(PaperEvaluator):
    """The harness fails in the second measurement."""

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        if len(self.calls) == 1:
            self.calls.append(("", ""))
            raise KbError("the disk is full: free some space")
        return super().measure(prepared, purpose)


def test_an_episode_that_the_harness_failed_in_is_no_result() -> None:
    stream = Stream("random", "random", 0, ("softmax",))
    with pytest.raises(KbError, match="disk is full"):
        list(play_stream(stream, Broken(), CONDITIONS))


def test_a_run_folder_refuses_times_from_elsewhere(tmp_path: Path) -> None:
    stream = Stream("random", "random", 0, ("softmax",))
    (episode,) = play_stream(stream, PaperEvaluator(), CONDITIONS)
    folder = RunFolder(tmp_path)
    folder.finish(episode)
    for change in ({"device": "Other"}, {"source": "measured"}, {"trust": "contained"}):
        (other,) = play_stream(stream, PaperEvaluator(**change), CONDITIONS)  # type: ignore[arg-type]
        for opened in (folder, RunFolder(tmp_path)):
            with pytest.raises(KbError, match="choose another --out"):
                opened.save(other)
    (tmp_path / "origin.json").unlink()  # a folder of an older version says it by its episodes
    with pytest.raises(KbError, match="modelled times of Paper"):
        RunFolder(tmp_path).save(other)


#: A shell starts what it puts into the background with interrupts ignored; this is about those that are not.
INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {paths!r}
from experiments import cli, compare
from test_workers import Slow
compare.make_evaluator = lambda backend, **_: Slow(0.05)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interrupting_twice_keeps_what_was_finished(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    words = ["compare", "--policies", "random", "--tasks", "softmax,gelu", "--seeds", "20", "--steps", "3"]
    words += ["--backend", "sim", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", INTERRUPTED.format(paths=paths), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    episodes = tmp_path / "run" / "episodes"
    until = time.monotonic() + 60
    while time.monotonic() < until and len(list(episodes.glob("*.msgpack"))) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), err
    done = list(RunFolder(tmp_path / "run").episodes())
    assert 2 <= len(done) < 40 and all(episode.ended != "running" for episode in done)
    assert not list((tmp_path / "run").rglob("*.tmp*"))
    assert json.loads((tmp_path / "run" / "origin.json").read_text())["device"] == "Paper"


def test_episodes_are_told_apart_but_for_their_clocks() -> None:
    stream = Stream("random", "random", 0, ("softmax",))
    first, second = (next(iter(play_stream(stream, PaperEvaluator(), CONDITIONS))) for _ in range(2))
    assert isinstance(first, Episode) and timeless(first) == timeless(second)
    other = next(iter(play_stream(Stream("random", "random", 1, ("softmax",)), PaperEvaluator(), CONDITIONS)))
    assert timeless(first) != timeless(other)
