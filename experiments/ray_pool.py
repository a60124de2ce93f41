"""Rollouts on Ray, and the only file that imports it.

Streams of episodes run as tasks on CPUs, with CUDA hidden; each builds and records its candidates
itself. Measuring is done by evaluator actors, one per GPU (or per core on the simulator), to which a
broker beside the driver passes one measurement at a time: a GPU never waits for a compiler or a
model, and is never timed by two at once. The broker waits for the measurement itself, so no lease is
lost with the rollout that asked for it. A dead or hung evaluator is replaced and its measurement
repeated; a device that fails its own control, or is of another kind than the first, is put aside; a
dead or silent rollout is played again from its last finished episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from experiments.leased import Backend, Device, DeviceKind, LeasedEvaluator, evaluator_of
from experiments.streams import Conditions, Stream, play_stream
from kb_env.backends import choose
from kb_env.evaluators import DeviceUnfit, Evaluator, Prepared, Purpose
from kb_env.records import pack, unpack
from kb_env.replay import Recorder
from kb_env.task import load_task
from kb_env.types import Episode, Evaluation, KbError, Program

#: A measurement that takes longer is given up: the evaluator is killed and replaced (seconds).
MEASURE_TIMEOUT = 180.0
#: How often a measurement is repeated after its evaluator died, and a stream after its worker died.
REPEATS = 3
#: A rollout that yields no episode for so long is taken for hung and played again (seconds).
SILENCE = 3600.0
#: How long the first evaluator may take to start, waiting for resources included (seconds).
START_TIMEOUT = 600.0
#: Pause before an evaluator that died is replaced (seconds).
BACKOFF = 0.5


@dataclass(frozen=True)
class PoolSpec:
    """How large the pool is. ``workers`` rollouts at once, ``evaluators`` devices; 0 means all GPUs.

    ``gpus_each`` is what an evaluator claims of Ray's GPUs; default: one for ``gpu``, else none.
    """

    backend: Backend
    workers: int
    evaluators: int = 0
    address: str = "local"
    store: str | None = None
    record: str | None = None
    gpus_each: float | None = None
    counters: bool = True
    silence: float = SILENCE

    @property
    def claims(self) -> float:
        if self.gpus_each is not None:
            return self.gpus_each
        named = isinstance(self.backend, str) and choose(self.backend)[0].partition(":")[0]
        return 1.0 if named == "gpu" else 0.0


def patience(backend: Backend) -> float | None:
    """How long a measurement may take (seconds); a spool's workers may wait long for their turn."""
    return None if isinstance(backend, str) and backend.startswith("spool") else MEASURE_TIMEOUT


class Measuring:
    """Owns one evaluator, and so one GPU, for its lifetime."""

    def __init__(self, backend: Backend, store: str | None, counters: bool) -> None:
        self.device = Device(evaluator_of(backend, store, counters))

    def kind(self) -> DeviceKind:
        return self.device.kind

    def measure(self, prepared: Prepared, purpose: Purpose) -> Evaluation:
        return self.device.measure(prepared, purpose)

    def load(self) -> tuple[float, int]:
        return self.device.busy_seconds, self.device.count


# A decorator would hide from the type checker that these names are remote classes.
EvaluatorActor: Any = ray.remote(max_restarts=0, max_task_retries=0)(Measuring)


class Broking:
    """Passes measurements to evaluators, first come first served, and replaces those that die."""

    def __init__(self, spec: PoolSpec, count: int) -> None:
        self._spec = spec
        self._live: list[Any] = []
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._known = asyncio.Event()
        self._kind: DeviceKind | None = None
        self._aside: list[Any] = []  # kept alive: they hold on to their GPU, so that nobody gets it
        self._why: list[str] = []
        self._deaths = 0
        self._load: dict[bytes, tuple[float, int]] = {}
        self._tasks = {asyncio.ensure_future(self._join()) for _ in range(count)}

    async def _join(self) -> None:
        """Start one evaluator; it is free once it has said what it is, which may take long."""
        actor = EvaluatorActor.options(
            num_gpus=self._spec.claims, num_cpus=0 if self._spec.claims else 1, scheduling_strategy="SPREAD"
        ).remote(self._spec.backend, self._spec.store, self._spec.counters)
        try:
            kind = await actor.kind.remote()
        except RayError as error:
            self._deaths += 1
            self._why.append(_last_line(error))
            if self._kind is None and self._deaths >= REPEATS:
                self._known.set()
                return
            await self._replace()
            return
        if self._kind is None:
            self._kind = kind
            self._known.set()
        if kind != self._kind:
            self._put_aside(actor, f"{kind.device} is not {self._kind.device}")
        else:
            self._live.append(actor)
            self._free.put_nowait(actor)

    async def _replace(self) -> None:
        await asyncio.sleep(BACKOFF)
        task = asyncio.ensure_future(self._join())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _put_aside(self, actor: Any, why: str) -> None:
        self._aside.append(actor)
        self._why.append(why)
        self._live = [item for item in self._live if item._actor_id != actor._actor_id]

    async def kind(self) -> DeviceKind:
        await self._known.wait()
        if self._kind is None:
            raise KbError(f"{REPEATS} evaluators died as they started ({self._why[-1]}): run kb doctor there")
        return self._kind

    async def measure(self, boxed: list[Any], purpose: Purpose) -> Evaluation:
        """Have a program measured. ``boxed`` holds the reference to it: it does not pass through here.

        Raises:
            KbError: if the harness fails, or evaluators keep dying on this one.
        """
        for _ in range(REPEATS):
            actor = await self._take()
            try:
                found: Evaluation = await asyncio.wait_for(
                    actor.measure.remote(boxed[0], purpose), patience(self._spec.backend)
                )
            except RayTaskError as error:
                if isinstance(error.cause, DeviceUnfit):
                    self._put_aside(actor, str(error.cause))
                    continue
                self._free.put_nowait(actor)
                raise KbError(str(error.cause)) from None
            except (RayActorError, asyncio.TimeoutError):
                await self._bury(actor)
            except RayError:  # the rollout died, and its program with it
                self._free.put_nowait(actor)
                raise
            else:
                self._free.put_nowait(actor)
                return found
        raise KbError(f"{REPEATS} evaluators died or hung on one measurement: run kb doctor on the workers")

    async def _take(self) -> Any:
        while True:
            if not self._live and not self._tasks and self._aside:
                raise KbError(f"no device is left that is fit to measure on: {'; '.join(self._why[-3:])}")
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self._free.get(), 1.0)

    async def _bury(self, actor: Any) -> None:
        """Kill what is left of an evaluator and start another."""
        ray.kill(actor)
        self._deaths += 1
        self._live = [item for item in self._live if item._actor_id != actor._actor_id]
        task = asyncio.ensure_future(self._replace())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load(self) -> list[tuple[float, int]]:
        """(busy seconds, measurements) of each evaluator, as last heard of it."""
        for actor in self._live:
            with contextlib.suppress(RayError, asyncio.TimeoutError):
                self._load[actor._actor_id.binary()] = await asyncio.wait_for(actor.load.remote(), 2.0)
        return list(self._load.values())

    async def state(self) -> dict[str, int]:
        """How many evaluators live, were put aside, and died."""
        return {"live": len(self._live), "aside": len(self._aside), "deaths": self._deaths}


Broker: Any = ray.remote(num_cpus=0, max_concurrency=10_000)(Broking)


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def pool_evaluator(broker: Any, spec: PoolSpec) -> Evaluator:
    """An evaluator that prepares here and has the broker measure. The broker has its own time limits."""
    limit = None if patience(spec.backend) is None else MEASURE_TIMEOUT * REPEATS + START_TIMEOUT

    def measured(prepared: Prepared, purpose: Purpose) -> Evaluation:
        try:
            found: Evaluation = ray.get(broker.measure.remote([ray.put(prepared)], purpose), timeout=limit)
        except RayTaskError as error:
            raise KbError(str(error.cause)) from error
        return found

    kind = ray.get(broker.kind.remote(), timeout=START_TIMEOUT)
    evaluator: Evaluator = LeasedEvaluator(kind, spec.backend, spec.store, measured)
    return Recorder(evaluator, spec.record) if spec.record else evaluator


@ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
def run_stream(
    stream: Stream, broker: Any, spec: PoolSpec, conditions: Conditions, done: list[bytes]
) -> Iterator[bytes]:
    """Play a stream; yields each finished episode as msgpack."""
    evaluator = pool_evaluator(broker, spec)
    try:
        finished = [unpack(Episode, item) for item in done]
        for episode in play_stream(stream, evaluator, conditions, finished):
            yield pack(episode)
    finally:
        evaluator.close()


@dataclass
class _Run:
    """A stream under way: what it has finished, how often it was lost, when it was last heard of."""

    stream: Stream
    done: list[bytes]
    tries: int = 0
    heard: float = field(default_factory=time.monotonic)


class RayPool:
    """A started Ray with a broker; use as a context manager."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self._start()
        count = spec.evaluators or self._device_count()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.broker = Broker.options(scheduling_strategy=here).remote(spec, count)

    def _start(self) -> None:
        local = self.spec.address == "local"
        cpus = self.spec.workers + max(1, self.spec.evaluators) + 1
        limits: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 256 << 20} if local else {}
        # Rollouts see no GPU; and workers find the code that this process runs.
        environment = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
        if local:
            root = str(Path(__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        ray.init(
            address=self.spec.address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": environment},
            **limits,
        )

    def _device_count(self) -> int:
        if not self.spec.claims:
            return max(1, self.spec.workers)
        count = int(ray.cluster_resources().get("GPU", 0) / self.spec.claims)
        if count == 0:
            raise KbError(
                "Ray sees no GPU on this cluster: start its nodes with --num-gpus or use --backend sim"
            )
        return count

    def kind(self) -> DeviceKind:
        """What the pool measures on, once its first evaluator has started.

        Raises:
            KbError: if none starts.
        """
        try:
            found: DeviceKind = ray.get(self.broker.kind.remote(), timeout=START_TIMEOUT)
        except RayTaskError as error:
            raise KbError(str(error.cause)) from error
        except GetTimeoutError as error:
            raise KbError(
                f"no evaluator started within {START_TIMEOUT:.0f} s: see ray status for what the cluster lacks"
            ) from error
        return found

    def run(
        self, work: Sequence[tuple[Stream, list[Episode]]], conditions: Conditions
    ) -> Iterator[tuple[Stream, Episode | str]]:
        """Play streams, ``workers`` at once; yields (stream, episode) as each ends, or (stream, why) once it failed."""
        waiting = [_Run(stream, [pack(e) for e in done]) for stream, done in work]
        running: dict[Any, _Run] = {}
        while waiting or running:
            while waiting and len(running) < self.spec.workers:
                run = waiting.pop(0)
                run.heard = time.monotonic()
                running[run_stream.remote(run.stream, self.broker, self.spec, conditions, list(run.done))] = (
                    run
                )
            ready, _ = ray.wait(list(running), num_returns=1, timeout=5.0, fetch_local=False)
            silent = [g for g, run in running.items() if time.monotonic() - run.heard > self.spec.silence]
            for generator in dict.fromkeys([*ready, *silent]):
                run = running[generator]
                if generator not in ready:
                    ray.cancel(generator, force=True)
                    lost: str | None = f"no episode for {self.spec.silence:.0f} s"
                else:
                    lost = yield from self._hear(generator, run)
                if lost == "":
                    continue
                running.pop(generator)
                if lost is not None:
                    run.tries += 1
                    if run.tries < REPEATS:
                        waiting.insert(0, run)
                    else:
                        yield run.stream, f"{REPEATS} rollouts were lost on it; the last one: {lost}"

    def _hear(self, generator: Any, run: _Run) -> Generator[tuple[Stream, Episode | str], None, str | None]:
        """One item of a rollout. Returns "" if it goes on, None if it is over, else how it was lost."""
        try:
            data = ray.get(next(generator), timeout=60.0)
        except StopIteration:
            return None
        except TaskCancelledError as error:
            return _last_line(error)
        except RayTaskError as error:  # the harness failed in it, or the policy: it would again
            yield run.stream, _last_line(error)
            return None
        except (RayError, GetTimeoutError) as error:  # its process or node is gone
            return _last_line(error)
        run.done.append(data)
        run.heard = time.monotonic()
        run.tries = 0
        yield run.stream, unpack(Episode, data)
        return ""

    def load(self) -> list[tuple[float, int]]:
        """(busy seconds, measurements) of each evaluator."""
        found: list[tuple[float, int]] = ray.get(self.broker.load.remote(), timeout=MEASURE_TIMEOUT)
        return found

    def state(self) -> dict[str, int]:
        """How many evaluators live, were put aside, and died."""
        found: dict[str, int] = ray.get(self.broker.state.remote(), timeout=MEASURE_TIMEOUT)
        return found

    def close(self) -> None:
        ray.shutdown()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@ray.remote(num_cpus=1)
def _latencies(broker: Any, spec: PoolSpec, count: int) -> list[float]:
    task = load_task("vector_add")
    evaluator = pool_evaluator(broker, spec)
    found = []
    for number in range(count + 20):
        prepared = evaluator.prepare(task, Program(task.name, f"{task.source}\n// {number}"))
        started = time.perf_counter()
        evaluator.measure(prepared)
        found.append(time.perf_counter() - started)
    return found[20:]


def latencies(pool: RayPool, count: int) -> list[float]:
    """Seconds that each of ``count`` measurements takes as a rollout sees it, after 20 that warm up."""
    limit = START_TIMEOUT + MEASURE_TIMEOUT
    found: list[float] = ray.get(_latencies.remote(pool.broker, pool.spec, count), timeout=limit)
    return found


def fake_cluster(head: dict[str, Any]) -> Any:
    """A cluster of processes on this machine for tests of faults: ``add_node``, ``remove_node``, ``shutdown``.

    ``head`` are the resources of its first node. GPUs claimed there need not exist; every node hands out
    number 0.
    """
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args=head)
