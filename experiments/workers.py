"""Rollouts side by side on one machine without Ray: processes that play streams, devices that measure.

Each worker process plays one stream at a time and builds and records its candidates itself. With a
GPU, measurements are asked for over the worker's pipe and made here, by one thread per device, so
that no GPU is timed by two at once or waits for a compiler; the simulator and recordings are
deterministic and run in each worker. A worker that dies or falls silent is replaced and its stream
goes on from its last finished episode, a few times; then the stream has failed and the rest goes on.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from experiments.leased import Backend, Device, DeviceKind, LeasedEvaluator, die_with, evaluator_of
from experiments.streams import Conditions, Stream, play_stream
from kb_env.backends import choose, make_evaluator
from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.records import pack, unpack
from kb_env.replay import Recorder
from kb_env.types import Episode, Evaluation, KbError

#: How often a stream is played again after its worker died.
REPEATS = 3
#: A worker that neither waits for a device nor says anything for so long is taken for hung (seconds).
SILENCE = 1800.0
#: How long a worker may take to start (seconds).
START_SECONDS = 120.0


@dataclass(frozen=True)
class Crew:
    """What every worker needs: ``kind`` is set where measurements are made by the parent."""

    backend: Backend
    conditions: Conditions
    kind: DeviceKind | None = None
    store: str | None = None
    record: str | None = None


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    stream: Stream | None = None
    done: list[Episode] = field(default_factory=list)
    tries: int = 0
    heard: float = 0.0
    measuring: bool = False
    started: bool = False


def _serve(pipe: Connection, crew: Crew, parent: int) -> None:
    """A worker process: plays the streams it is sent until the pipe closes."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle
    evaluator = _evaluator(pipe, crew)
    pipe.send(("started", None))
    try:
        while True:
            try:
                stream, done = pipe.recv()
            except EOFError:
                return
            finished = [unpack(Episode, item) for item in done]
            try:
                for episode in play_stream(stream, evaluator, crew.conditions, finished):
                    pipe.send(("episode", pack(episode)))
            except (KbError, OSError) as error:
                pipe.send(("failed", str(error)))
            else:
                pipe.send(("ended", None))
    finally:
        evaluator.close()


def _evaluator(pipe: Connection, crew: Crew) -> Evaluator:
    evaluator: Evaluator
    if crew.kind is None:
        evaluator = evaluator_of(crew.backend, crew.store)
    else:

        def measured(prepared: Prepared, purpose: Purpose) -> Evaluation:
            pipe.send(("measure", (prepared, purpose)))
            found: Evaluation | str = pipe.recv()
            if isinstance(found, str):
                raise KbError(found)
            return found

        evaluator = LeasedEvaluator(crew.kind, crew.backend, crew.store, measured)
    return Recorder(evaluator, crew.record) if crew.record else evaluator


class WorkerPool:
    """``count`` worker processes and, with a GPU backend, the devices they share; a context manager.

    ``devices`` are evaluators to measure on instead of those ``backend`` names; the caller closes them.
    """

    def __init__(
        self,
        backend: Backend,
        count: int,
        store: str | None = None,
        record: str | None = None,
        counters: bool = True,
        devices: Sequence[Evaluator] = (),
        silence: float = SILENCE,
    ) -> None:
        if count < 1:
            raise KbError("--workers must be at least 1")
        self._backend, self._count, self._silence = backend, count, silence
        self._store, self._record = store, record
        self._owned: list[Evaluator] = []
        evaluators = list(devices)
        named = isinstance(backend, str) and choose(backend)[0].partition(":")[0]
        if not evaluators and isinstance(backend, str) and named == "gpu":
            evaluators = self._owned = [make_evaluator(backend, store=store, counters=counters)]
        self.devices = [Device(evaluator) for evaluator in evaluators]
        if len({device.kind for device in self.devices}) > 1:
            raise KbError("devices of different kinds in one pool: their times cannot be compared")
        # (episodes left, order, what to do): a long stream that had to wait its turn each time would end last.
        self._asked: queue.PriorityQueue[tuple[int, int, Callable[[Device], None] | None]] = (
            queue.PriorityQueue()
        )
        self._order = itertools.count()
        self._threads = [
            threading.Thread(target=self._measure_for, args=(d,), daemon=True) for d in self.devices
        ]
        self._workers: list[_Worker] = []
        self._stillborn = 0

    def __enter__(self) -> WorkerPool:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers and stop the devices; a measurement under way gets a moment to finish."""
        for worker in self._workers:
            _end(worker)
        self._workers = []
        for _ in self._threads:
            self._asked.put((1, next(self._order), None))
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=20.0)
        for evaluator in self._owned:
            evaluator.close()

    def load(self) -> list[tuple[float, int]]:
        """(busy seconds, measurements) of each device."""
        return [(device.busy_seconds, device.count) for device in self.devices]

    def run(
        self, work: Sequence[tuple[Stream, list[Episode]]], conditions: Conditions
    ) -> Iterator[tuple[Stream, Episode | str]]:
        """Play streams; yields (stream, episode) as each episode ends, or (stream, why) once one failed."""
        kind = self.devices[0].kind if self.devices else None
        crew = Crew(self._backend, conditions, kind, self._store, self._record)
        waiting = list(work)
        self._workers = [self._start(crew) for _ in range(min(self._count, len(waiting)))]
        while waiting or any(worker.stream is not None for worker in self._workers):
            for worker in self._workers:
                if worker.stream is None and waiting:
                    stream, done = waiting.pop(0)
                    _give(worker, stream, list(done), 0)
            ready = wait([w.pipe for w in self._workers if w.stream is not None], timeout=1.0)
            for worker in [w for w in self._workers if w.pipe in ready or self._hung(w)]:
                yield from self._hear(worker, crew)

    def _hung(self, worker: _Worker) -> bool:
        busy = worker.stream is not None and not worker.measuring
        limit = self._silence if worker.started else START_SECONDS
        return busy and time.monotonic() - worker.heard > limit

    def _hear(self, worker: _Worker, crew: Crew) -> Iterator[tuple[Stream, Episode | str]]:
        """One message of a worker, or its death."""
        stream = worker.stream
        assert stream is not None
        if self._hung(worker):
            yield from self._replace(worker, crew, f"said nothing for {self._silence:.0f} s")
            return
        try:
            word, body = worker.pipe.recv()
        except (EOFError, OSError):
            yield from self._replace(worker, crew, "died")
            return
        worker.heard = time.monotonic()
        if word == "started":
            worker.started = True
        elif word == "measure":
            worker.measuring = True
            left = len(stream.tasks) - len(worker.done)
            self._asked.put((-left, next(self._order), lambda device: _answer(worker, device, *body)))
        elif word == "episode":
            episode = unpack(Episode, body)
            worker.done.append(episode)
            yield stream, episode
        else:
            worker.stream = None
            if word == "failed":
                yield stream, body

    def _replace(self, worker: _Worker, crew: Crew, why: str) -> Iterator[tuple[Stream, str]]:
        """A new process in the worker's place; its stream goes on, or has failed."""
        stream, done, tries = worker.stream, worker.done, worker.tries + 1
        assert stream is not None
        _end(worker)
        if not worker.started:
            self._stillborn += 1
            if self._stillborn >= REPEATS:
                raise KbError(f"{REPEATS} workers died as they started: what they print says why")
        fresh = self._start(crew)
        self._workers[self._workers.index(worker)] = fresh
        if tries < REPEATS:
            _give(fresh, stream, done, tries)
        else:
            yield stream, f"{REPEATS} workers were lost on it; the last one {why}"

    def _start(self, crew: Crew) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, crew, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, heard=time.monotonic())

    def _measure_for(self, device: Device) -> None:
        while (asked := self._asked.get()[-1]) is not None:
            asked(device)


def _answer(worker: _Worker, device: Device, prepared: Prepared, purpose: Purpose) -> None:
    """Measure for a worker; its death meanwhile is noticed when its pipe is next read."""
    found: Evaluation | str
    try:
        found = device.measure(prepared, purpose)
    except (KbError, OSError) as error:
        found = str(error)
    worker.heard, worker.measuring = time.monotonic(), False
    try:
        worker.pipe.send(found)
    except OSError:
        pass


def _give(worker: _Worker, stream: Stream, done: list[Episode], tries: int) -> None:
    worker.stream, worker.done, worker.tries, worker.heard = stream, done, tries, time.monotonic()
    try:
        worker.pipe.send((stream, [pack(item) for item in done]))
    except OSError:
        pass  # it has died: its pipe's end says so when it is next read


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()
