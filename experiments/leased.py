"""An evaluator in two halves: programs are built and recorded here, on CPUs, and measured elsewhere.

What a rollout holds while the device belongs to somebody else: a pool of processes
(:mod:`experiments.workers`) or a Ray cluster (:mod:`experiments.ray_pool`). A rollout leases the
device for one measurement, never for an episode, so a GPU waits for no compiler and no model.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kb_env.backends import make_evaluator
from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.prepare import prepare
from kb_env.store import default_store
from kb_env.types import Evaluation, Program, Task

#: See prctl(2).
_PR_SET_PDEATHSIG = 1

#: A backend by name, or what makes an evaluator (a function that can be pickled).
Backend = str | Callable[[], Evaluator]


@dataclass(frozen=True)
class DeviceKind:
    """What evaluations come from; ``architecture`` is "" where the backend itself knows what to build for."""

    trust: str
    source: str
    device: str
    architecture: str = ""


def kind_of(evaluator: Evaluator) -> DeviceKind:
    """The kind of an evaluator's device; starts a GPU's first process to learn its architecture."""
    facts = getattr(evaluator, "facts", None)
    architecture = str(getattr(facts, "architecture", ""))
    device = str(getattr(facts, "name", "")) if architecture else evaluator.device
    return DeviceKind(evaluator.trust, evaluator.source, device, architecture)


def evaluator_of(backend: Backend, store: str | None, counters: bool = True) -> Evaluator:
    """The evaluator that ``backend`` names or makes."""
    return make_evaluator(backend, store=store, counters=counters) if isinstance(backend, str) else backend()


@functools.lru_cache(maxsize=2)
def preparing(backend: Backend, store: str | None) -> Evaluator:
    """This process's evaluator for building and recording alone: it starts no device, so none is closed."""
    return evaluator_of(backend, store)


class LeasedEvaluator:
    """An :class:`Evaluator` whose ``prepare`` runs here and whose measurements ``measured`` makes."""

    def __init__(
        self,
        kind: DeviceKind,
        backend: Backend,
        store: str | None,
        measured: Callable[[Prepared, Purpose], Evaluation],
    ) -> None:
        self.trust, self.source, self.device = kind.trust, kind.source, kind.device
        self._architecture = kind.architecture
        self._backend = backend
        self._store = store
        self._measured = measured

    def prepare(self, task: Task, program: Program) -> Prepared:
        """Build and record on this process's CPUs, for the leased device."""
        if self._architecture:
            store = Path(self._store) if self._store else default_store()
            return prepare(task, program, self._architecture, store, (*task.check, *task.bench))
        return preparing(self._backend, self._store).prepare(task, program)

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        return self._measured(prepared, purpose)

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        """The device is not this rollout's to stop."""


class Device:
    """One evaluator for any number of callers, one measurement at a time, and how busy it was.

    The first measurement of a task's initial program against itself is kept: it pays no reward, it
    tells a policy where it starts, and every episode of the task asks for it.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.kind = kind_of(evaluator)
        self.busy_seconds = 0.0
        self.count = 0
        self._lock = threading.Lock()
        self._first: dict[tuple[str, int, bool], Evaluation] = {}

    def measure(self, prepared: Prepared, purpose: Purpose) -> Evaluation:
        task = prepared.task
        initial = purpose.baseline is None and prepared.program == task.initial
        # Modelled inputs follow the seed; a measurement draws its own.
        key = (task.key, purpose.seed if self.kind.source == "modelled" else 0, purpose.profile)
        with self._lock:
            if initial and key in self._first:
                return self._first[key]
            started = time.perf_counter()
            try:
                found = self.evaluator.measure(prepared, purpose)
            finally:
                self.busy_seconds += time.perf_counter() - started
                self.count += 1
            if initial and found.verified:
                self._first[key] = found
            return found


def die_with(parent: int) -> None:
    """End this process when ``parent``, whose id it is, ends: the kernel's signal, or at once if it is gone.

    To be called from a process that the parent's main thread started: the signal follows that thread.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
