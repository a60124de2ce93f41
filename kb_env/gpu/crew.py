"""The processes of one evaluator: standby runners, the oracle, and those that are ending."""

from __future__ import annotations

import os
import threading

from kb_env.gpu.bench import Bench
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.protocol import Copied, DeviceFacts, Ready
from kb_env.types import KbError

#: Seconds a runner or an oracle may take to start; torch's first import from a cold disk is slow.
START_SECONDS = 120.0
#: Runners started ahead: one evaluation takes about as long as one start.
STANDBYS = 2


class Crew:
    """Starts processes ahead on GPU ``index``, hands them out once they have proved themselves, ends them.

    Nothing is started before the first use. ``facts`` may be asked for from several threads; the rest
    belongs to whoever holds the GPU's lock.
    """

    def __init__(self, index: int, standbys: int = STANDBYS) -> None:
        self.index = index
        self.standbys = standbys
        self.mirror = -1
        self._starting = threading.RLock()
        self._standbys: list[Worker] = []
        self._dying: list[Worker] = []
        self._oracle: Worker | None = None
        self._oracle_ready = False
        self._facts: DeviceFacts | None = None

    @property
    def facts(self) -> DeviceFacts:
        """What the driver says about the GPU; starts a runner if none was started yet."""
        with self._starting:
            if self._facts is None:
                self._standbys.insert(0, self.runner())
        assert self._facts is not None
        return self._facts

    def pids(self) -> frozenset[int]:
        """Process ids of all that may be on the GPU."""
        workers = [*self._standbys, *self._dying, self._oracle]
        return frozenset(worker.pid for worker in workers if worker is not None)

    def start_ahead(self) -> None:
        """Start what is missing, without waiting for it."""
        if self.mirror < 0:
            self.mirror = os.memfd_create("kb-env-mirror")
        while len(self._standbys) < self.standbys:
            self._standbys.append(Worker("kb_env.gpu.runner", self.index, self.mirror))
        if self._oracle is not None and not self._oracle.alive():
            self._oracle.kill()
            self._oracle = None
        if self._oracle is None:
            self._oracle, self._oracle_ready = Worker("kb_env.gpu.oracle", self.index, self.mirror), False

    def runner(self) -> Worker:
        """Take a standby runner that has proved itself; those that did not are replaced, up to a limit."""
        error: Exception | None = None
        for _ in range(self.standbys + 1):
            self.start_ahead()
            runner = self._standbys.pop(0)
            if runner.ready is not None and runner.alive():
                return runner
            try:
                runner.ready = runner.expect(Ready, START_SECONDS)
            except (WorkerDied, WorkerFailed, WorkerTimeout) as failure:
                runner.kill()
                error = failure
                continue
            self._facts = runner.ready.device
            if runner.alive():  # its greeting may have outlived it
                return runner
            runner.kill()
        told = error or "its runners die while they wait"
        raise KbError(f"GPU {self.index} cannot be used: {told}") from error

    def oracle(self) -> Worker:
        self.start_ahead()
        oracle = self._oracle
        assert oracle is not None
        if not self._oracle_ready:
            try:
                oracle.expect(Copied, START_SECONDS)
            except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
                oracle.kill()
                self._oracle = None
                raise KbError(
                    f"the oracle did not start: {error}; is torch's CUDA build installed?"
                ) from error
            self._oracle_ready = True
        return oracle

    def end(self, runner: Worker, bench: Bench) -> None:
        """A runner serves one evaluation. It is killed now and collected later, another one starts."""
        runner.kill(wait=0)
        self._dying = [worker for worker in [*self._dying, runner] if worker.exists()]
        try:
            bench.close()
        except KbError:
            # The oracle lost the arena under its feet: its context is beyond use.
            assert self._oracle is not None
            self._oracle.kill()
            self._oracle = None
        self.start_ahead()

    def close(self) -> None:
        """End every process."""
        for worker in (*self._standbys, self._oracle, *self._dying):
            if worker is not None:
                worker.kill()
        self._standbys, self._oracle, self._dying = [], None, []
        if self.mirror >= 0:
            os.close(self.mirror)
            self.mirror = -1
