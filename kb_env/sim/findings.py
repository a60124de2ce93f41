"""What the sanitizer says: findings with kind, file, line, kernel, block and thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from kb_env.sim.compiled import Kernel
from kb_env.sim.native import FaultRecord, FindingRecord
from kb_env.types import Status

FAULTS = {
    1: "access out of bounds", 2: "misaligned access", 3: "trap",
    4: "instruction budget used up (does the kernel end?)",
    5: "deadlock: threads wait at a barrier that the others never reach",
    6: "branch index or barrier number out of range",
    7: "unsupported", 8: "assertion failed",
}  # fmt: skip
BUDGET = 4
_FAULT_KINDS = {
    1: "out-of-bounds", 2: "misaligned", 3: "trap", 4: "hang", 5: "divergent-barrier", 6: "out-of-range",
    7: "unsupported", 8: "assertion",
}  # fmt: skip
_KINDS = {
    1: ("divergent-barrier", "a barrier is reached by part of a warp"),
    2: ("absent-lane", "a shuffle reads a lane that does not take part"),
    3: ("missing-wait", "bytes of an asynchronous copy that was not waited for are used"),
    4: ("uninitialised", "memory is read that was never written"),
    5: ("race", "a read and a write by different threads, with nothing between them that orders them"),
    6: ("race", "two writes by different threads, with nothing between them that orders them"),
    7: ("divergent-barrier", "warps of a block wait at different barriers of the source"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Something a kernel does wrong. ``line`` is of the CUDA source (0: unknown); ``count`` says how often.

    Kinds: race, uninitialised, out-of-bounds, misaligned, divergent-barrier, missing-wait, absent-lane,
    hang, trap, assertion, out-of-range, unsupported.
    """

    kind: str
    message: str
    kernel: str
    file: str
    line: int
    block: tuple[int, int, int]
    thread: int
    count: int
    other_line: int = 0  # of a race: the earlier access

    @property
    def text(self) -> str:
        """One line for a person."""
        place = f"{self.file}:{self.line}" if self.line else self.file or "?"
        return f"{self.kind} at {place}: {self.message} ({self.kernel}, block {self.block}, thread {self.thread})"


def described(
    item: FindingRecord, code: Kernel, place: Callable[[int], str], grid: tuple[int, ...]
) -> Finding:
    """A finding of the runtime in words; ``place`` names an address."""
    site = code.sites[item.site]
    kind, message = _KINDS[item.kind]
    other = 0
    if item.width:
        message += f": {item.width} bytes at {place(item.address)}"
    if item.other_site < len(code.sites):
        other = code.sites[item.other_site].source
        linear = item.other_block
        block = (linear % grid[0], linear // grid[0] % grid[1], linear // grid[0] // grid[1])
        line = f"line {other}, " if other else ""
        message += f"; before: {line}{code.sites[item.other_site].opcode} by block {block}, thread {item.other_thread}"
    return Finding(
        kind, f"{message}; now: {site.opcode}", code.name, _file(code), site.source,
        (item.block[0], item.block[1], item.block[2]), item.thread, item.count, other,
    )  # fmt: skip


def from_fault(item: FaultRecord, code: Kernel, message: str) -> Finding:
    """What stopped a kernel, as a finding."""
    line = code.sites[item.site].source if item.site < len(code.sites) else 0
    if item.kind == BUDGET and item.address < len(code.blocks):
        line = code.blocks[item.address].line
    kind = _FAULT_KINDS.get(item.kind, "trap")
    block = (item.block[0], item.block[1], item.block[2])
    return Finding(kind, message, code.name, _file(code), line, block, item.warp * 32 + item.lane, 1)


def status_of(findings: tuple[Finding, ...]) -> Status:
    """The verdict that findings are worth."""
    return Status.TIMED_OUT if any(item.kind == "hang" for item in findings) else Status.WRONG


def _file(code: Kernel) -> str:
    return PurePath(code.file).name
