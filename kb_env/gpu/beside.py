"""Library baselines from the controller's side: the client of baselines.py, and its times beside a measurement.

Cross-process: the library runs in a context of its own, on inputs of the same seeds, after a flush of the same
size. What is compared with it is labelled so and rewards nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.protocol import Copied, Done, Library, LibraryTimes, Pose
from kb_env.gpu.statistics import BLOCK, paired
from kb_env.types import Case, KbError, Task, Timing

KINDS = ("eager", "compile", "max-autotune")


class LibraryBaselines:
    """Client: times of library implementations of a task. Use as a context manager."""

    def __init__(self, index: int = 0) -> None:
        self._worker = Worker("kb_env.gpu.baselines", index)
        self._ready = False
        self._posed: str | None = None

    def times(self, task: Task, case: Case, kind: str, seeds: tuple[int, ...]) -> LibraryTimes:
        """Microseconds of one run per seed.

        Raises:
            KbError: if the process fails or the task has no library implementation.
        """
        if kind not in KINDS:
            raise KbError(f"no library baseline {kind!r}: choose one of {', '.join(KINDS)}")
        try:
            if not self._ready:
                self._worker.expect(Copied, 120.0)
                self._ready = True
            if self._posed != task.key:
                self._worker.ask(Pose(task), Done, 60.0)
                self._posed = task.key
            return self._worker.ask(Library(kind, case.name, seeds, True), LibraryTimes, 600.0)
        except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
            raise KbError(f"no {kind} time for {task.name}: {error}") from error

    @property
    def pid(self) -> int:
        return self._worker.pid

    def close(self) -> None:
        self._worker.kill()

    def __enter__(self) -> LibraryBaselines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Beside:
    """Library times of one measurement: after each block of pairs the block's inputs once more, in the other process.

    ``absent`` says which implementations gave none and why. Whether a graph was captured is in ``graphs``.
    """

    def __init__(self, client: LibraryBaselines, task: Task, kinds: Sequence[str]) -> None:
        self._client = client
        self._task = task
        self.times: dict[tuple[str, str], list[float]] = {}
        self.graphs: dict[str, bool] = {}
        self.absent: dict[str, str] = {}
        self._kinds = list(kinds)
        for kind in kinds:  # compile and capture now: no evaluation's time limit is to pay for it
            for case in task.bench:
                self._ask(kind, case, ())

    def block(self, case: Case, seeds: tuple[int, ...]) -> None:
        """Time each library on the contents of the block that has just ended."""
        random.shuffle(self._kinds)
        for kind in self._kinds:
            if kind not in self.absent:
                self.times.setdefault((kind, case.name), []).extend(self._ask(kind, case, seeds))

    def _ask(self, kind: str, case: Case, seeds: tuple[int, ...]) -> tuple[float, ...]:
        if kind in self.absent:
            return ()
        try:
            found = self._client.times(self._task, case, kind, seeds)
        except KbError as error:
            self.absent[kind] = str(error)
            return ()
        self.graphs[kind] = found.graph
        if not found.ok:
            self.absent[kind] = f"its output is wrong: {found.message}"
        return found.microseconds

    def timings(self, measured: Sequence[Timing]) -> tuple[Timing, ...]:
        """One for each bench case and library, paired in the order the contents came."""
        found = []
        for timing in measured:
            for kind in KINDS:
                times = self.times.get((kind, timing.case), [])
                if kind in self.absent or len(times) < 2 * BLOCK:
                    continue
                own = timing.candidate_us[: len(times)]
                between = paired(own, times[: len(own)])
                ends = between.speedup, between.low, between.high
                found.append(Timing(timing.case, kind, own, tuple(times[: len(own)]), *ends, timing.source))
        return tuple(found)
