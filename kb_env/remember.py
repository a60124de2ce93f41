"""Evaluations kept from episode to episode, for evaluators that would repeat themselves.

Only for modelled evaluations: the same program, task, baseline and seed give the same answer there,
so that remembering changes nothing but the time it takes. Measured ones are never remembered.
With a folder they are kept on disk as well, a file each, for other processes and later runs. The
folder is for one version of the simulator: delete it where that changes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.files import write_atomic
from kb_env.records import RecordError, pack, unpack
from kb_env.replay import PreparedRecord
from kb_env.types import Evaluation, KbError, Program, Status, Task, digest

R = TypeVar("R")

#: Programs and evaluations kept; the least recently used are dropped.
CAPACITY = 4096


class Remembering:
    """A modelled evaluator that answers from memory what it has answered before.

    ``folder`` keeps the answers on disk too. Any number of processes may share it.
    """

    def __init__(self, evaluator: Evaluator, folder: Path | None = None) -> None:
        if evaluator.source != "modelled":
            raise KbError(
                f"{evaluator.source} evaluations are made afresh: only modelled ones are remembered"
            )
        self.evaluator = evaluator
        self.folder = folder
        self.trust, self.source, self.device = evaluator.trust, evaluator.source, evaluator.device
        self._prepared: OrderedDict[tuple[str, str], Prepared] = OrderedDict()
        self._measured: OrderedDict[tuple[str, str, str, Purpose], Evaluation] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, task: Task, program: Program) -> Prepared:
        """What is known of the program, or what building it now gives. Remembered without its binary."""
        key = task.key, program.key
        with self._lock:
            known = self._prepared.get(key)
        if known is not None:
            return replace(known, program=program)
        kept = self._read(PreparedRecord, key)
        if kept is not None:
            prepared = Prepared(task, program, kept.build, {}, kept.key, fault=kept.fault)
        else:
            prepared = self.evaluator.prepare(task, program)
            record = PreparedRecord(task.key, program, prepared.build, prepared.key, prepared.fault)
            self._write(record, key)
        with self._lock:
            _put(self._prepared, key, replace(prepared, plans={}, image=b"", ptx=""))
        return prepared

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation:
        task, program = prepared.task, prepared.program
        key = task.key, prepared.key or program.key, "code" if prepared.key else "text", purpose
        with self._lock:
            known = self._measured.get(key)
        if known is not None:
            return known
        evaluation = self._read(Evaluation, key)
        if evaluation is None:
            if prepared.fault is None and not prepared.image:
                prepared = self.evaluator.prepare(task, program)
            evaluation = self.evaluator.measure(prepared, purpose)
            if evaluation.status is not Status.UNRECORDED:
                self._write(evaluation, key)
        if evaluation.status is not Status.UNRECORDED:
            with self._lock:
                _put(self._measured, key, evaluation)
        return evaluation

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        self.evaluator.close()

    def _path(self, cls: type, key: tuple[object, ...]) -> Path | None:
        """Where a record is kept. A purpose counts by its baseline's key, not by the baseline's text."""
        if self.folder is None:
            return None
        parts = [self.trust, self.source, self.device, cls.__name__]
        for item in key:
            if isinstance(item, Purpose):
                baseline = item.baseline.key if item.baseline is not None else "initial"
                parts += [baseline, repr(replace(item, baseline=None))]
            else:
                parts.append(str(item))
        return self.folder / f"{digest(chr(0).join(parts))}.record"

    def _read(self, cls: type[R], key: tuple[object, ...]) -> R | None:
        path = self._path(cls, key)
        if path is None or not path.exists():
            return None
        try:
            return unpack(cls, path.read_bytes())
        except RecordError:
            return None  # of another version: it is made again

    def _write(self, record: object, key: tuple[object, ...]) -> None:
        path = self._path(type(record), key)
        fault = getattr(record, "fault", None)
        slow = fault is not None and fault.status is Status.TIMED_OUT  # perhaps the machine was busy
        if path is not None and not slow:
            write_atomic(path, pack(record))


def _put(kept: OrderedDict, key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > CAPACITY:
        kept.popitem(last=False)
