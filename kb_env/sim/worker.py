"""The simulator process: ``python -m kb_env.sim.worker FD PARENT STORE`` runs plans of candidate kernels.

The resident process compiles kernels (and keeps them in the store) but runs none. Each request is
run by a child of its own, forked with the code in place, which gives up files, network and most
system calls first: what a candidate does ends with its child, and nothing of it reaches the cache.
Neither process has secrets or an expected result; both die with their parent.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np

from kb_env.records import RecordError
from kb_env.sim import confine, native
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.machine import Machine, SimFault
from kb_env.sim.spot import POISON
from kb_env.sim.wire import (
    HARNESS,
    Ended,
    Hello,
    Job,
    JobResult,
    Piece,
    Request,
    Response,
    WorkerGone,
    close_all,
    private_map,
    receive,
    send,
    shared_map,
)
from kb_env.store import Store
from kb_env.types import KbError, Status, digest

#: Workspace beyond this many bytes starts as zeros instead of poison: filling it would take too long.
POISON_LIMIT = 256 << 20
#: Blocks of each grid that a first, short run takes to find out how much work a block is.
PILOT_BLOCKS = 2
SAMPLE_BLOCKS = 64
#: Compiled programs that stay in memory.
KEPT_MACHINES = 8


class Worker:
    """Keeps compiled programs between requests; everything else is fresh for each request."""

    def __init__(self, store: Store | None) -> None:
        self._machines: OrderedDict[str, Machine] = OrderedDict()
        self._store = store

    def run(self, request: Request, files: tuple[int, ...]) -> Ended:
        """Compile, then have a child answer on the third of ``files``."""
        self._compile(request)
        here = os.getpid()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                reply = socket.socket(fileno=files[2])
                source = private_map(files[0], request.input_bytes)
                target = shared_map(files[1], request.output_bytes)
                confine.run(here, request.cpu_seconds)
                send(reply, self.answer(request, source, target))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        return Ended(request.number, os.waitstatus_to_exitcode(status))

    def _compile(self, request: Request) -> None:
        """Have the code of all kernels ready. Faults are met again, and reported, by the run itself."""
        for kernel in dict.fromkeys(launch.kernel for job in request.jobs for launch in job.plan.launches):
            try:
                self._machine(request.ptx, any(job.sanitize for job in request.jobs)).compile(kernel)
            except (SimFault, KbError, RuntimeError):
                return

    def answer(self, request: Request, source: mmap.mmap, target: mmap.mmap) -> Response:
        results = []
        for job in request.jobs:
            results.append(self._run(request.ptx, job, source, target))
            if results[-1].status is not None:
                break
        return Response(request.number, tuple(results))

    def _run(self, ptx: str, job: Job, source: mmap.mmap, target: mmap.mmap) -> JobResult:
        started = time.monotonic()
        status, message, machine = None, "", None
        counts: list[LaunchCounts] = []
        try:
            machine = self._machine(ptx, job.sanitize)
            machine.findings.clear()
            if job.sample:
                counts, memory = sampled_counts(machine, job, source)
            else:
                memory = buffers(job, source)
                counts = machine.run(
                    job.plan, memory, budget=job.budget, waves=job.waves, given=given_buffers(job)
                )
            copy_out(job, memory, source, target)
        except SimFault as fault:
            status, message = fault.status.value, fault.message
        except (KbError, RuntimeError) as error:  # the simulator's own failure (or LLVM's): the parent raises
            status, message = HARNESS, str(error)
        except MemoryError:
            status = Status.REFUSED.value
            message = f"the buffers do not fit the simulator's {confine.ADDRESS_SPACE >> 30} GiB"
        seconds = time.monotonic() - started
        findings = tuple(machine.findings) if machine is not None else ()
        return JobResult(job.plan.case, status, message, tuple(counts), seconds, findings)

    def _machine(self, ptx: str, sanitize: bool) -> Machine:
        key = f"{digest(ptx)}{int(sanitize)}"
        if key not in self._machines:
            self._machines[key] = Machine(ptx, store=self._store, sanitize=sanitize)
            while len(self._machines) > KEPT_MACHINES:
                self._machines.popitem(last=False)
        self._machines.move_to_end(key)
        return self._machines[key]


def sampled_counts(
    machine: Machine, job: Job, source: mmap.mmap
) -> tuple[list[LaunchCounts], list[np.ndarray]]:
    """Counters from as many blocks as about ``job.sample`` warp instructions allow, and what they left.

    How many is decided by counting, never by the clock: the same program gives the same counters.
    """
    memory = buffers(job, source)
    pilot = machine.run(job.plan, memory, sample_blocks=PILOT_BLOCKS, budget=job.budget)
    per_block = sum(sum(c.warp_instructions.values()) / max(c.blocks_run, 1) for c in pilot)
    blocks = min(SAMPLE_BLOCKS, int(job.sample / max(per_block, 1.0)))
    if blocks <= PILOT_BLOCKS or all(c.blocks_run >= c.blocks_total for c in pilot):
        return pilot, memory
    memory = buffers(job, source)
    return machine.run(job.plan, memory, sample_blocks=blocks, budget=job.budget), memory


def given_buffers(job: Job) -> list[bool]:
    """Which of the plan's buffers hold data from the start: arguments that are inputs."""
    names = {piece.name for piece in job.inputs}
    return [buffer.kind == "argument" and buffer.name in names for buffer in job.plan.buffers]


def buffers(job: Job, source: mmap.mmap) -> list[np.ndarray]:
    """One byte array for each buffer of the plan: inputs copied on write, the rest poisoned."""
    pieces = {piece.name: piece for piece in job.inputs}
    memory = []
    for buffer in job.plan.buffers:
        piece = pieces.get(buffer.name) if buffer.kind == "argument" else None
        if piece is not None and piece.nbytes == buffer.nbytes:
            # Sampled runs may write into the mapping: counters alone come of them.
            view = np.frombuffer(source, np.uint8, piece.nbytes, piece.offset)
            memory.append(view if job.sample else view.copy())
            continue
        fresh = np.frombuffer(mmap.mmap(-1, max(buffer.nbytes, 1)), np.uint8)[: buffer.nbytes]
        if job.poison >= 0 and buffer.kind != "symbol":
            fresh[:POISON_LIMIT] = job.poison
        places = pieces.get(f"@{buffer.name}") if buffer.kind == "argument" else None
        if places is not None:
            elements, positions = spots(fresh, places, job, source)
            elements[positions] = POISON
        memory.append(fresh)
    return memory


def spots(data: np.ndarray, places: Piece, job: Job, source: mmap.mmap) -> tuple[np.ndarray, np.ndarray]:
    """A buffer as rows of its elements' bytes, and the positions that are looked at."""
    positions = np.frombuffer(source, np.int64, places.nbytes // 8, places.offset)
    out = next(piece for piece in job.outputs if f"@{piece.name}" == places.name)
    return data.reshape(-1, out.nbytes // len(positions)), positions


def copy_out(job: Job, memory: list[np.ndarray], source: mmap.mmap, target: mmap.mmap) -> None:
    """Copy the buffers asked for, or of those with spots the elements there, into the output file."""
    given = {piece.name: piece.offset for piece in job.inputs}
    places = {piece.name: piece for piece in job.inputs}
    index = {b.name: i for i, b in enumerate(job.plan.buffers) if b.kind == "argument"}
    for piece in job.outputs:
        view = np.frombuffer(target, np.uint8, piece.nbytes, piece.offset)
        if f"@{piece.name}" in places:
            view[:] = POISON
            if piece.name in index:
                data = memory[index[piece.name]]
                elements, positions = spots(data, places[f"@{piece.name}"], job, source)
                view[:] = elements[positions].reshape(-1)
        elif piece.name in index:
            view[:] = memory[index[piece.name]]
        elif piece.name in given:  # the launcher never touched this argument: it stays as it was
            view[:] = np.frombuffer(source, np.uint8, piece.nbytes, given[piece.name])
        else:
            view[:] = max(job.poison, 0)


def main(arguments: list[str]) -> int:
    channel = socket.socket(fileno=int(arguments[0]))
    native.load(native.default_cache())  # may compile: before the limits
    confine.resident(int(arguments[1]))
    worker = Worker(Store(Path(arguments[2])) if len(arguments) > 2 else None)
    send(channel, Hello(os.getpid()))
    while True:
        try:
            request, files = receive(channel, Request)
        except (WorkerGone, RecordError):
            return 0
        try:
            ended = worker.run(request, files)
        finally:
            close_all(files)
        send(channel, ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
