"""Recorded evaluations as a file and as an evaluator: policies run again without GPU or compiler.

A recording (see frames.py for the framing) holds a header and two kinds of records:

- *prepared*: task key, program, what building and recording it came to, and the key of its machine
  code and launches;
- *measured*: task key, program key, the baseline's name and key, and the evaluation.

What was not recorded is UNRECORDED, never guessed. Programs with the same machine code and launches
share their measurements, and a pairing against the initial program counts for it under either name
(``initial``, ``best``). If a pairing was recorded more than once, the first counts, so that a
recording that grows does not change what it said.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.frames import FrameWriter, read_frames
from kb_env.records import RecordError, from_plain, pack, plain, unpack_plain
from kb_env.types import BuildResult, Evaluation, Fault, KbError, Program, Status, Task, digest

MAGIC = b"kb-env recording 1\n"


@dataclass(frozen=True)
class Header:
    """Whose evaluations a file holds: they are never mixed with another device's or tier's."""

    trust: str
    source: str
    device: str


@dataclass(frozen=True)
class PreparedRecord:
    """A program built and recorded, without its binary."""

    task: str
    program: Program
    build: BuildResult
    key: str | None
    fault: Fault | None


@dataclass(frozen=True)
class MeasuredRecord:
    """One measurement; ``baseline`` is a program key, ``name`` what the baseline was called."""

    task: str
    program: str
    baseline: str
    name: str
    evaluation: Evaluation


Record = Header | PreparedRecord | MeasuredRecord
_KINDS: dict[str, type] = {cls.__name__: cls for cls in (Header, PreparedRecord, MeasuredRecord)}


def _encode(record: Record) -> bytes:
    return pack({"kind": type(record).__name__, "data": plain(record)})


def _decode(payload: bytes, path: Path) -> Record:
    try:
        outer = unpack_plain(payload)
        if not isinstance(outer, dict) or outer.get("kind") not in _KINDS:
            raise RecordError("unknown kind of record")
        record: Record = from_plain(_KINDS[outer["kind"]], outer.get("data"))
    except RecordError as error:
        raise KbError(
            f"{path} holds a record this version does not read ({error}): record it again"
        ) from error
    return record


def read_recording(path: str | Path) -> list[Record]:
    """All records of a file, the header first.

    Raises:
        KbError: if the file is missing, of another kind, or has no header.
    """
    path = Path(path)
    records = [_decode(payload, path) for payload in read_frames(path, MAGIC)]
    if not records or not isinstance(records[0], Header):
        raise KbError(f"{path} holds no recording: make one with --record {path}")
    return records


class Recorder:
    """Any evaluator, with everything it finds appended to a file."""

    def __init__(self, evaluator: Evaluator, path: str | Path) -> None:
        self.evaluator = evaluator
        self.path = Path(path)
        self.trust, self.source, self.device = evaluator.trust, evaluator.source, evaluator.device
        self._lock = threading.Lock()
        self._written: set[str] = set()
        self._writer: FrameWriter | None = None
        self._process = os.getpid()
        with self._lock, self._open():
            pass  # fails early where the file belongs to another device or cannot be written

    def prepare(self, task: Task, program: Program) -> Prepared:
        prepared = self.evaluator.prepare(task, program)
        self._append(PreparedRecord(task.key, program, prepared.build, prepared.key, prepared.fault))
        return prepared

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        evaluation = self.evaluator.measure(prepared, purpose)
        task, baseline = prepared.task, purpose.baseline or prepared.task.initial
        name = purpose.baseline_name
        self._append(MeasuredRecord(task.key, prepared.program.key, baseline.key, name, evaluation))
        return evaluation

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        self.evaluator.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> FrameWriter:
        """The writer, with this file's header written or checked."""
        if self._writer is not None and self._process == os.getpid():
            return self._writer  # a forked child opens its own: its lock would be its parent's
        writer = FrameWriter(self.path, MAGIC)
        header = Header(self.trust, self.source, self.device)
        try:
            with writer:
                frames = read_frames(self.path, MAGIC)
                if not frames:
                    writer.append(_encode(header))
                elif _decode(frames[0], self.path) != header:
                    found = _decode(frames[0], self.path)
                    raise KbError(f"{self.path} records {found}, this is {header}: record to another file")
        except BaseException:
            writer.close()
            raise
        self._written = {digest(frame) for frame in frames}
        self._writer, self._process = writer, os.getpid()
        return writer

    def _append(self, record: Record) -> None:
        payload = _encode(record)
        with self._lock:
            if digest(payload) not in self._written:
                with self._open() as writer:
                    writer.append(payload)
                self._written.add(digest(payload))

    def __getstate__(self) -> dict[str, object]:
        return {"evaluator": self.evaluator, "path": self.path}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["evaluator"], state["path"])  # type: ignore[misc]


class ReplayEvaluator:
    """Answers from a recording. Deterministic; needs no compiler and no device."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        records = read_recording(self.path)
        header = records[0]
        assert isinstance(header, Header)  # read_recording has checked it
        self.trust, self.source, self.device = header.trust, header.source, header.device
        self._prepared: dict[tuple[str, str], PreparedRecord] = {}
        self._measured: dict[tuple[str, str, str, str], Evaluation] = {}
        for record in records:
            if isinstance(record, PreparedRecord):
                self._prepared.setdefault((record.task, record.program.key), record)
        for record in records:
            if isinstance(record, MeasuredRecord):
                for key in self._keys(record.task, record.program, record.baseline, record.name):
                    self._measured.setdefault(key, record.evaluation)

    def prepare(self, task: Task, program: Program) -> Prepared:
        record = self._prepared.get((task.key, program.key))
        if record is None:
            fault = self._unrecorded("build", f"program {program.key} of {task.name}")
            return Prepared(task, program, BuildResult(False, "", 0.0), {}, None, fault=fault)
        return Prepared(task, program, record.build, {}, record.key, fault=record.fault)

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        task, program = prepared.task, prepared.program
        baseline = purpose.baseline or task.initial
        fault = prepared.fault
        if fault is None:
            names = [purpose.baseline_name]
            if baseline.key == task.initial.key:
                names += ["initial", "best"]
            for name in names:
                for key in self._keys(task.key, program.key, baseline.key, name):
                    if key in self._measured:
                        return self._measured[key]
            fault = self._unrecorded("time", f"program {program.key} of {task.name} against {baseline.key}")
        return Evaluation(
            build=prepared.build,
            verification=None,
            timings=None,
            profile=None,
            trust=self.trust,
            source=self.source,
            device=self.device,
            key=prepared.key,
            fault=fault,
        )

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        """Nothing to stop."""

    def recorded(self, task: Task) -> tuple[Program, ...]:
        """Programs of a task that were measured against initial, or failed, in order of the recording."""
        found = []
        for (key, _), record in self._prepared.items():
            measured = self._keys(key, record.program.key, task.initial.key, "initial")
            if key == task.key and (record.fault is not None or any(k in self._measured for k in measured)):
                found.append(record.program)
        return tuple(found)

    def _keys(self, task: str, program: str, baseline: str, name: str) -> list[tuple[str, str, str, str]]:
        """Under which keys a measurement is filed: by source and by machine code, the same for both."""
        code, against = (self._code(task, key) for key in (program, baseline))
        return [(task, program, baseline, name), (task, code, against, name)]

    def _code(self, task: str, program: str) -> str:
        record = self._prepared.get((task, program))
        return f"code {record.key}" if record is not None and record.key is not None else program

    def _unrecorded(self, stage: str, what: str) -> Fault:
        return Fault(Status.UNRECORDED, stage, f"{what} is not in {self.path.name}")
