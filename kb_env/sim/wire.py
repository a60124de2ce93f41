"""What the evaluator and its simulator process say to each other: checked records on a socket.

A message is eight bytes of length, with at most three file descriptors attached, and a msgpack
record. Arrays travel as sealed memory files: the parent cannot be hurt by a child that cuts one
short, and big buffers are mapped, not copied.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kb_env.plan import LaunchPlan
from kb_env.records import RecordError, pack, unpack
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.findings import Finding

T = TypeVar("T")

#: Status of a job that failed for the simulator's own fault.
HARNESS = "HARNESS"
MESSAGE_LIMIT = 256 << 20
# Seals of Linux memory files, fcntl(2).
SEAL_SEALS, SEAL_SIZE, SEAL_WRITE = 0x1, 0x2 | 0x4, 0x8


class WorkerGone(Exception):
    """The other side closed the connection or sent what is no message."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one plan buffer inside a memory file. ``offset`` is a multiple of 4096."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Job:
    """Run one plan.

    ``inputs`` are argument buffers found in the request's input file, ``outputs`` those to be
    copied into its output file; every other buffer starts as ``poison`` bytes (-1: zeros).
    ``sample`` is the number of warp instructions to aim for by running part of each grid's blocks;
    0 runs all blocks. ``budget`` is the most warp instructions before the plan counts as hung.
    """

    plan: LaunchPlan
    inputs: tuple[Piece, ...]
    outputs: tuple[Piece, ...]
    poison: int
    sample: int
    budget: int
    sanitize: bool = False  # look for races and memory faults as well
    waves: int = 0  # blocks side by side, the last one first (Machine.run)


@dataclass(frozen=True)
class Request:
    number: int
    ptx: str
    input_bytes: int
    output_bytes: int
    cpu_seconds: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class JobResult:
    """``status`` is None where the plan ran; else the Status name and what happened."""

    case: str
    status: str | None
    message: str
    counts: tuple[LaunchCounts, ...]
    seconds: float
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Hello:
    """The first message of a new process, once it has limited itself."""

    pid: int


@dataclass(frozen=True)
class Response:
    """Results in the order of the jobs; they end with the first one that failed."""

    number: int
    results: tuple[JobResult, ...]


@dataclass(frozen=True)
class Ended:
    """How the process that answered a request ended: its exit code, or minus the signal."""

    number: int
    code: int


def send(channel: socket.socket, record: object, files: tuple[int, ...] = ()) -> None:
    data = pack(record)
    header = struct.pack("<Q", len(data))
    try:
        if files:
            socket.send_fds(channel, [header], list(files))
        else:
            channel.sendall(header)
        channel.sendall(data)
    except TimeoutError:
        raise
    except OSError as error:
        raise WorkerGone(f"connection lost: {error}") from error


def receive(channel: socket.socket, cls: type[T], deadline: float | None = None) -> tuple[T, tuple[int, ...]]:
    """The next message as ``cls`` with its descriptors, which the caller closes.

    Raises:
        TimeoutError: at ``deadline`` (of the monotonic clock), however slowly bytes trickle in.
        WorkerGone: at the end of the stream.
        RecordError: for bytes that are no such record.
    """
    files: list[int] = []
    try:
        _arm(channel, deadline)
        header, files, _, _ = socket.recv_fds(channel, 8, 3)
        if not header:
            raise WorkerGone("connection closed")
        header += _exactly(channel, 8 - len(header), deadline)
        (size,) = struct.unpack("<Q", header)
        if size > MESSAGE_LIMIT:
            raise WorkerGone(f"a message of {size} bytes")
        return unpack(cls, _exactly(channel, size, deadline)), tuple(files)
    except (OSError, WorkerGone, RecordError) as error:
        close_all(files)
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise WorkerGone(f"connection lost: {error}") from error
        raise


def _arm(channel: socket.socket, deadline: float | None) -> None:
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        channel.settimeout(left)


def _exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray(size)
    view, done = memoryview(parts), 0
    while done < size:
        _arm(channel, deadline)
        count = channel.recv_into(view[done:])
        if count == 0:
            raise WorkerGone("connection closed")
        done += count
    return bytes(parts)


def memory_file(nbytes: int) -> int:
    """A new memory file of fixed size: neither side can cut it short under the other's mapping."""
    descriptor = os.memfd_create("kb-sim", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, max(nbytes, 1))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEAL_SIZE)
    return descriptor


def freeze(descriptor: int) -> None:
    """Nobody can write to the file any more. No shared mapping of it may be left."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEAL_WRITE | SEAL_SEALS)


def shared_map(descriptor: int, nbytes: int) -> mmap.mmap:
    """Both sides see what is written here."""
    return mmap.mmap(descriptor, max(nbytes, 1), flags=mmap.MAP_SHARED)


def private_map(descriptor: int, nbytes: int) -> mmap.mmap:
    """Copy on write: what a candidate does to its inputs stays in its process."""
    return mmap.mmap(descriptor, max(nbytes, 1), flags=mmap.MAP_PRIVATE)


class Layout:
    """Hands out page-aligned pieces of one memory file; ``nbytes`` is its size so far."""

    def __init__(self) -> None:
        self.nbytes = 0

    def add(self, sizes: Mapping[str, int]) -> tuple[Piece, ...]:
        """Pieces for buffers by name."""
        pieces = []
        for name, nbytes in sizes.items():
            pieces.append(Piece(name, self.nbytes, nbytes))
            self.nbytes += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        return tuple(pieces)


def close_all(files: Iterable[int]) -> None:
    for descriptor in files:
        os.close(descriptor)
