"""Evaluations kept in memory from episode to episode, for evaluators that would repeat themselves.

Only for modelled evaluations: the same program, task, baseline and seed give the same answer there,
so that remembering changes nothing but the time it takes. Measured ones are never remembered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from kb_env.evaluators import Evaluator, Prepared, Purpose
from kb_env.types import Evaluation, KbError, Program, Status, Task

#: Programs and evaluations kept; the least recently used are dropped.
CAPACITY = 4096


class Remembering:
    """A modelled evaluator that answers from memory what it has answered before."""

    def __init__(self, evaluator: Evaluator) -> None:
        if evaluator.source != "modelled":
            raise KbError(
                f"{evaluator.source} evaluations are made afresh: only modelled ones are remembered"
            )
        self.evaluator = evaluator
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
        prepared = self.evaluator.prepare(task, program)
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
        if prepared.fault is None and not prepared.image:
            prepared = self.evaluator.prepare(task, program)
        evaluation = self.evaluator.measure(prepared, purpose)
        if evaluation.status is not Status.UNRECORDED:
            with self._lock:
                _put(self._measured, key, evaluation)
        return evaluation

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation:
        return self.measure(self.prepare(task, program), purpose)

    def close(self) -> None:
        self.evaluator.close()


def _put(kept: OrderedDict, key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > CAPACITY:
        kept.popitem(last=False)
