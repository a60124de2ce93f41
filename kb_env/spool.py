"""Evaluations through a shared folder, for GPUs that only batch jobs reach.

A rollout writes each request as one file and waits for its result file; workers (``kb evaluate DIR``)
on machines with the device work off what is pending. The folder is a :class:`FileQueue` of msgpack
records, named by the hash of task, program and purpose, and beside it ``device.msgpack``: trust, source
and device of its workers, one kind of GPU to a folder.

Equal requests share one result: nothing is evaluated twice, and a run that is resumed finds its
answers. A request names its task's reference module, which workers trust: the folder must be writable
by its owner only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.file_queue import FileQueue
from kb_env.files import write_atomic
from kb_env.records import RecordError, pack, unpack
from kb_env.types import BuildResult, Evaluation, Fault, KbError, Program, Task, digest

#: A request whose worker failed or died this often is answered with an error.
ATTEMPTS = 3


@dataclass(frozen=True)
class SpoolDevice:
    """Whose evaluations a folder holds."""

    trust: str
    source: str
    device: str


@dataclass(frozen=True)
class Request:
    """``purpose`` None asks for building and recording only."""

    task: Task
    program: Program
    purpose: Purpose | None


@dataclass(frozen=True)
class Made:
    """What building and recording came to, without the binary."""

    build: BuildResult
    key: str | None
    fault: Fault | None


@dataclass(frozen=True)
class Answer:
    """Exactly one of ``made``, ``evaluation`` and ``error`` (the harness's own failure) is set."""

    request: str
    made: Made | None = None
    evaluation: Evaluation | None = None
    error: str | None = None


class Spool(FileQueue):
    """The folder's files: a queue of requests and whose evaluations they are."""

    def device(self) -> SpoolDevice | None:
        """Whose folder this is, or None before its first worker."""
        try:
            return unpack(SpoolDevice, (self.path / "device.msgpack").read_bytes())
        except FileNotFoundError:
            return None
        except RecordError as error:
            raise KbError(f"{self.path}/device.msgpack is damaged ({error}): delete it") from error

    def ask(self, request: Request) -> str:
        """Write a request if it is neither pending nor answered; returns its name."""
        data = pack(replace(request, task=replace(request.task, folder=None)))
        name = digest(data)
        self.put(name, data)
        return name

    def answer(self, name: str) -> Answer | None:
        """The answer to a request, or None. A damaged one is dropped, so that it is worked out again."""
        try:
            answer = unpack(Answer, self.result_file(name).read_bytes())
        except FileNotFoundError:
            return None
        except RecordError:
            self.result_file(name).unlink(missing_ok=True)
            return None
        parts = (answer.made, answer.evaluation, answer.error)
        if answer.request != name or sum(part is not None for part in parts) != 1:
            raise KbError(f"{self.result_file(name)} answers something else: delete it")
        return answer


class SpoolEvaluator:
    """An evaluator whose work is done by the workers of a spool folder.

    ``wait`` bounds the wait for one answer in seconds; None waits as long as the batch system takes.
    """

    def __init__(self, path: str | Path, wait: float | None = None, poll: float = 0.5) -> None:
        self.spool = Spool(Path(path))
        self.wait = wait
        self.poll = poll
        self._device: SpoolDevice | None = None

    @property
    def facts(self) -> SpoolDevice:
        """Whose folder it is; waits for the first worker."""
        started = time.monotonic()
        while self._device is None:
            self._device = self.spool.device()
            if self._device is None:
                self._pause(started)
        return self._device

    @property
    def trust(self) -> str:
        return self.facts.trust

    @property
    def source(self) -> str:
        return self.facts.source

    @property
    def device(self) -> str:
        return self.facts.device

    def prepare(self, task: Task, program: Program) -> Prepared:
        made = self._answer(Request(task, program, None)).made
        if made is None:
            raise KbError("the spool answered another question: delete its results/")
        return Prepared(task, program, made.build, {}, made.key, fault=made.fault)

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        return self.evaluate(prepared.task, prepared.program, purpose)

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        found = self._answer(Request(task, program, purpose)).evaluation
        if found is None or (found.trust, found.source, found.device) != (
            self.trust,
            self.source,
            self.device,
        ):
            raise KbError("the spool holds an answer of another kind or device: delete its results/")
        return found

    def _answer(self, request: Request) -> Answer:
        started = time.monotonic()
        while True:
            name = self.spool.ask(request)
            answer = self.spool.answer(name)
            if answer is None:
                self._pause(started)
            elif answer.error is not None:
                self.spool.forget(name)
                raise KbError(f"the spool's workers gave up: {answer.error}")
            else:
                return answer

    def _pause(self, started: float) -> None:
        waited = time.monotonic() - started
        if self.wait is not None and waited > self.wait:
            raise KbError(f"no answer in {self.wait:g} s: start a worker with kb evaluate {self.spool.path}")
        time.sleep(min(self.poll, 0.01 + waited / 10))

    def close(self) -> None:
        """Nothing is held: pending requests stay, and are found again."""


class SpoolWorker:
    """Works off a spool with an evaluator of this machine.

    Raises:
        KbError: if the folder belongs to another device, or the evaluator itself fails.
    """

    def __init__(self, path: str | Path, evaluator: Evaluator) -> None:
        self.spool = Spool(Path(path))
        self.evaluator = evaluator
        own = SpoolDevice(evaluator.trust, evaluator.source, evaluator.device)
        found = self.spool.device()
        if found is None:
            write_atomic(self.spool.path / "device.msgpack", pack(own))
        elif found != own:
            raise KbError(f"{path} holds {found.source} times of {found.device}: one folder per device")

    def work(self) -> int:
        """Answer what is pending and not claimed; returns how many were answered."""
        return sum(self._one(name) for name in self.spool.pending())

    def _one(self, name: str) -> bool:
        with self.spool.claim(name) as attempt:
            if attempt is None:
                return False
            try:
                data = self.spool.request_file(name).read_bytes()
            except FileNotFoundError:  # answered since it was listed
                return False
            fresh = self.spool.answer(name) is None
            if fresh:
                write_atomic(self.spool.result_file(name), pack(self._find(name, data, attempt)))
            self.spool.done(name)
            return fresh

    def _find(self, name: str, data: bytes, attempt: int) -> Answer:
        if attempt > ATTEMPTS:
            return Answer(name, error=f"{ATTEMPTS} workers failed or died on request {name}")
        try:
            request = unpack(Request, data)
        except RecordError as error:
            return Answer(name, error=f"request {name} is damaged or of another version: {error}")
        if digest(data) != name:
            return Answer(name, error=f"request {name} is not what its name says")
        if request.purpose is None:
            made = self.evaluator.prepare(request.task, request.program)
            return Answer(name, made=Made(made.build, made.key, made.fault))
        return Answer(
            name, evaluation=self.evaluator.evaluate(request.task, request.program, request.purpose)
        )
