"""Rollouts on Ray, and the only file that imports it.

Streams of episodes run as tasks on CPUs, with CUDA hidden; each builds and records its candidates
itself. Measuring is done by evaluator actors, one per GPU (or per core on the simulator), which a
rollout leases from a broker for one measurement at a time: a GPU never waits for a compiler or a
model, and is never timed by two at once. A dead or hung evaluator is replaced and its measurement
repeated; a dead rollout is played again from its last finished episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from experiments.streams import Conditions, Stream, play_stream
from kb_env.backends import choose, make_evaluator
from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.prepare import prepare
from kb_env.records import pack, unpack
from kb_env.store import default_store
from kb_env.types import Episode, Evaluation, KbError, Program, Task

#: A measurement that takes longer is given up: the evaluator is killed and replaced (seconds).
MEASURE_TIMEOUT = 180.0
#: How often a measurement is repeated after its evaluator died, and a stream after its worker died.
REPEATS = 3


@dataclass(frozen=True)
class PoolSpec:
    """How large the pool is. ``workers`` rollouts at once, ``evaluators`` devices; 0 means all GPUs."""

    backend: str
    workers: int
    evaluators: int = 0
    address: str = "local"
    store: str | None = None


def patience(backend: str) -> float | None:
    """How long a measurement may take (seconds); a spool's workers may wait long for their turn."""
    return None if backend.startswith("spool") else MEASURE_TIMEOUT


class Measuring:
    """Owns one evaluator, and so one GPU, for its lifetime."""

    def __init__(self, backend: str, store: str | None) -> None:
        self.evaluator = make_evaluator(backend, store=store)
        self.busy_seconds = 0.0
        self.count = 0

    def facts(self) -> tuple[str, str, str, str]:
        """Trust, source and device, and the architecture to build for ("" where the backend knows it)."""
        found = self.evaluator
        gpu = getattr(found, "facts", None)
        return found.trust, found.source, found.device, getattr(gpu, "architecture", "")

    def measure(self, prepared: Prepared, purpose: Purpose) -> Evaluation:
        started = time.perf_counter()
        try:
            return self.evaluator.measure(prepared, purpose)
        finally:
            self.busy_seconds += time.perf_counter() - started
            self.count += 1

    def load(self) -> tuple[float, int]:
        return self.busy_seconds, self.count


# A decorator would hide from the type checker that these names are remote classes.
EvaluatorActor: Any = ray.remote(max_restarts=0, max_task_retries=0)(Measuring)


class Leasing:
    """Leases evaluators, first come first served, and replaces those that are reported dead."""

    def __init__(self, backend: str, count: int, store: str | None, gpus_each: float) -> None:
        self._make = lambda: EvaluatorActor.options(
            num_gpus=gpus_each, num_cpus=0 if gpus_each else 1
        ).remote(backend, store)
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._all = [self._make() for _ in range(count)]
        self.replaced = 0
        for actor in self._all:
            self._free.put_nowait(actor)

    async def facts(self) -> tuple[str, str, str, str]:
        for _ in range(REPEATS):
            actor = self._all[0]
            try:
                found: tuple[str, str, str, str] = await actor.facts.remote()
            except RayActorError:  # died before its first measurement
                await self.dead(actor)
            else:
                return found
        raise KbError(f"{REPEATS} evaluators died as they started: run kb doctor on the workers")

    async def lease(self) -> Any:
        return await self._free.get()

    async def give_back(self, actor: Any) -> None:
        self._free.put_nowait(actor)

    async def dead(self, actor: Any) -> None:
        """Kill what is left of an evaluator and put a new one in its place, once."""
        if all(item._actor_id != actor._actor_id for item in self._all):
            return
        ray.kill(actor)
        self.replaced += 1
        fresh = self._make()
        self._all = [fresh if item._actor_id == actor._actor_id else item for item in self._all]
        self._free.put_nowait(fresh)

    async def load(self) -> list[tuple[float, int]]:
        found = []
        for actor in self._all:
            with contextlib.suppress(RayError):
                found.append(await actor.load.remote())
        return found


Broker: Any = ray.remote(num_cpus=0)(Leasing)


class PoolEvaluator:
    """An :class:`Evaluator` whose ``prepare`` runs here, on CPUs, and whose ``measure`` leases a device."""

    def __init__(self, broker: Any, backend: str, store: str | None) -> None:
        self._broker = broker
        self._store = store
        self._backend = backend
        self._local: Evaluator | None = None
        self.trust, self.source, self.device, self._architecture = ray.get(
            broker.facts.remote(), timeout=patience(backend)
        )

    def prepare(self, task: Task, program: Program) -> Prepared:
        """Build and record on this worker's CPUs, for the pool's device."""
        if self._architecture:
            cases = (*task.check, *task.bench)
            return prepare(
                task,
                program,
                self._architecture,
                Path(self._store) if self._store else default_store(),
                cases,
            )
        if self._local is None:
            self._local = make_evaluator(self._backend, store=self._store)
        return self._local.prepare(task, program)

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        for _ in range(REPEATS):
            actor = ray.get(self._broker.lease.remote())
            try:
                evaluation: Evaluation = ray.get(
                    actor.measure.remote(prepared, purpose), timeout=patience(self._backend)
                )
            except RayTaskError:  # the harness's own failure: not a device's death
                ray.get(self._broker.give_back.remote(actor))
                raise
            except (RayActorError, GetTimeoutError):
                ray.get(self._broker.dead.remote(actor))
                continue
            ray.get(self._broker.give_back.remote(actor))
            return evaluation
        raise KbError(f"{REPEATS} evaluators died or hung on one measurement: run kb doctor on the workers")

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        if self._local is not None:
            self._local.close()


@ray.remote(num_cpus=1, max_retries=REPEATS)
def run_stream(
    stream: Stream, broker: Any, spec: PoolSpec, conditions: Conditions, done: list[bytes]
) -> Iterator[bytes]:
    """Play a stream; yields each finished episode as msgpack."""
    evaluator = PoolEvaluator(broker, spec.backend, spec.store)
    try:
        finished = [unpack(Episode, item) for item in done]
        for episode in play_stream(stream, evaluator, conditions, finished):
            yield pack(episode)
    finally:
        evaluator.close()


class RayPool:
    """A started Ray with a broker; use as a context manager."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self._gpu = choose(spec.backend)[0] == "gpu"
        self._start()
        count = spec.evaluators or self._device_count()
        self.broker = Broker.remote(spec.backend, count, spec.store, 1.0 if self._gpu else 0.0)

    def _start(self) -> None:
        local = self.spec.address == "local"
        cpus = self.spec.workers + max(1, self.spec.evaluators) + 1
        limits: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 256 << 20} if local else {}
        ray.init(
            address=self.spec.address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}},
            **limits,
        )

    def _device_count(self) -> int:
        if not self._gpu:
            return max(1, self.spec.workers)
        count = int(ray.cluster_resources().get("GPU", 0))
        if count == 0:
            raise KbError(
                "Ray sees no GPU on this cluster: start its nodes with --num-gpus or use --backend sim"
            )
        return count

    def run(
        self, work: Sequence[tuple[Stream, list[Episode]]], conditions: Conditions
    ) -> Iterator[tuple[Stream, Episode | str]]:
        """Play streams, ``workers`` at once; yields (stream, episode) as each ends, or (stream, why) once it failed."""
        waiting = list(work)
        running: dict[Any, Stream] = {}
        while waiting or running:
            while waiting and len(running) < self.spec.workers:
                stream, done = waiting.pop(0)
                generator = run_stream.remote(
                    stream, self.broker, self.spec, conditions, [pack(e) for e in done]
                )
                running[generator] = stream
            ready, _ = ray.wait(list(running), num_returns=1, fetch_local=False)
            for generator in ready:
                stream = running[generator]
                try:
                    yield stream, unpack(Episode, ray.get(next(generator)))
                except StopIteration:
                    running.pop(generator)
                except RayError as error:
                    running.pop(generator)
                    yield stream, str(error).strip().splitlines()[-1]

    def load(self) -> list[tuple[float, int]]:
        """(busy seconds, measurements) of each evaluator."""
        found: list[tuple[float, int]] = ray.get(self.broker.load.remote(), timeout=MEASURE_TIMEOUT)
        return found

    def close(self) -> None:
        ray.shutdown()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
