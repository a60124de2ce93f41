"""compute-sanitizer over one small case: memory, races, uninitialised reads, barriers; or the simulator's checks.

Each tool has a process of its own, all at once (sanitized.py); their logs are read, never their output or exit
codes. A finding names the source line. Takes some seconds, so only a new record is looked at.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kb_env.evaluators import Prepared
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout
from kb_env.gpu.protocol import Bind, Detach, Done, Feed, Load
from kb_env.types import Case, Fault, Task

if TYPE_CHECKING:
    from kb_env.sim.client import Client

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
START_SECONDS, RUN_SECONDS, END_SECONDS = 60.0, 60.0, 20.0
#: A case with fewer bytes of arguments shows little.
ENOUGH_BYTES = 1 << 12

#: Kinds of the simulator's findings that reject a program which ran on the GPU.
_COUNTED = frozenset(
    {
        "race",
        "uninitialised",
        "out-of-bounds",
        "misaligned",
        "divergent-barrier",
        "missing-wait",
        "absent-lane",
    }
)

_PREFIX = "========= "
#: Characters looked at in one line: names in it are the program's choice, and matching takes their square.
_LINE = 1000
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?")
_IDLE = re.compile(r"COMPUTE-SANITIZER|.*SUMMARY|Warning|Info|Saved host|Host Frame|Target application|\s|$")
#: What a tool says of its own failure, which it counts among the errors.
_BROKEN = re.compile(r"(Error: )?Internal ")
_PLACE = re.compile(r"\bat (?P<function>.+?)\+0x[0-9a-f]+ in (?P<file>\S+?):(?P<line>\d+)")


@dataclass(frozen=True)
class Report:
    """``tools`` under which the program ran to its end; ``finding`` is the first thing found, with its line.

    ``failed`` says why the other tools did not.
    """

    tools: tuple[str, ...]
    finding: str | None = None
    failed: tuple[str, ...] = ()


class Sanitizer:
    """The tools on GPU ``index``; on a machine without them every report is empty, and ``present`` false."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._command = find_tool()

    @property
    def present(self) -> bool:
        return self._command is not None

    def check(self, prepared: Prepared, case: Case, inputs: Sequence[tuple[str, bytes]]) -> Report:
        """Replay ``case`` once under each tool. What goes wrong there beside findings is no finding."""
        if self._command is None:
            return Report(())
        command = self._command
        with ThreadPoolExecutor(len(TOOLS)) as pool:
            logs = list(pool.map(lambda tool: self._log(command, tool, prepared, case, inputs), TOOLS))
        named = dict(zip(TOOLS, logs, strict=True))
        reasons = {tool: why or _obstacle(log) for tool, (log, why) in named.items()}
        done = tuple(tool for tool, why in reasons.items() if not why)
        failed = tuple(f"{tool}: {why}" for tool, why in reasons.items() if why)
        for tool, (log, _) in named.items():
            found = finding(log)
            if found is not None:
                return Report(done, f"{tool}: {found}", failed)
        return Report(done, None, failed)

    def _log(
        self, command: str, tool: str, prepared: Prepared, case: Case, inputs: Sequence[tuple[str, bytes]]
    ) -> tuple[str, str]:
        """The tool's log, and what kept the program from its end under it (empty if nothing did)."""
        with tempfile.TemporaryDirectory(prefix="kb-env-sanitizer-") as folder:
            log = Path(folder) / "log.txt"
            prefix = (
                command, "--tool", tool, "--log-file", str(log), "--report-api-errors", "no",
                "--print-limit", "3", "--target-processes", "application-only",
            )  # fmt: skip
            worker = Worker("kb_env.gpu.sanitized", self._index, prefix=prefix)
            plan, why = prepared.plans[case.name], ""
            try:
                worker.expect(Done, START_SECONDS)
                worker.ask(Load(0, prepared.image), Done, RUN_SECONDS)
                for name, data in inputs:
                    worker.ask(Feed(name, data), Done, RUN_SECONDS)
                worker.ask(Bind(0, case.name, plan, ()), Done, RUN_SECONDS)
                worker.ask(Detach(), Done, RUN_SECONDS)
            except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
                why = str(error)[:200]  # the tool ends a faulty program itself, and says so in its log
            try:
                worker.wait(END_SECONDS)
            finally:
                worker.kill()
            return log.read_text(errors="replace") if log.exists() else "", why


class StandIn:
    """The simulator's checks, where compute-sanitizer is not installed; its child process starts on first use."""

    def __init__(self) -> None:
        self._client: Client | None = None

    def check(self, prepared: Prepared, case: Case) -> Report:
        """Run ``case`` on the CPU with a shadow of its memory."""
        from kb_env.numerics import Reference  # torch takes seconds to import, and few need this
        from kb_env.sim.client import Client
        from kb_env.sim.sanitize import sanitize

        if self._client is None:
            self._client = Client()
        found = sanitize(prepared, Reference(prepared.task), self._client, cases=(case,))
        if isinstance(found, Fault):
            return Report((), None, (f"simulator: {found.message}",))
        # The GPU has run the program to its end: that the simulator cannot (blocks that wait for one another,
        # an instruction it lacks) says nothing against it.
        counted = [item.text for item in found if item.kind in _COUNTED]
        if found and not counted:
            return Report((), None, (f"simulator: {found[0].text}",))
        return Report(("simulator",), counted[0] if counted else None)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def find_tool() -> str | None:
    """Path of compute-sanitizer: on the PATH, or beside an nvcc that is."""
    nvcc = shutil.which("nvcc")
    beside = Path(nvcc).resolve().parent / "compute-sanitizer" if nvcc else None
    found = shutil.which("compute-sanitizer")
    return found or (str(beside) if beside is not None and beside.exists() else None)


def small_case(task: Task) -> Case:
    """The smallest check case that has something to it."""

    def size(case: Case) -> int:
        return sum(a.nbytes(case.sizes) for a in task.arguments if a.kind != "scalar")

    cases = sorted(task.check, key=size)
    return next((case for case in cases if size(case) >= ENOUGH_BYTES), cases[-1])


def _lines(log: str) -> list[str]:
    found = (line.removeprefix(_PREFIX) for line in log.splitlines() if line.startswith(_PREFIX))
    return [line[:_LINE] for line in found]


def _obstacle(log: str) -> str:
    """What kept a tool from its end, by its log; empty if nothing did."""
    if not _SUMMARY.search(log):
        return "no summary"
    return next((line[:200] for line in _lines(log) if _BROKEN.match(line)), "")


def finding(log: str) -> str | None:
    """The first error of a tool's log in one line, None if there is none (or the log is not whole)."""
    counts = [int(number) for match in _SUMMARY.finditer(log) for number in match.groups() if number]
    if not any(counts):
        return None
    lines = _lines(log)
    start = next((i for i, line in enumerate(lines) if not (_IDLE.match(line) or _BROKEN.match(line))), None)
    if start is None:
        return None if _obstacle(log) else f"{max(counts)} errors"
    what = re.sub(r"0x[0-9a-f]{6,}", "an address", lines[start]).strip()
    for line in lines[start : start + 6]:
        place = _PLACE.search(line)
        if place is not None:
            name = place["function"].split("(")[0]
            where = f"{Path(place['file']).name}:{place['line']}"
            return f"{what.split(' at ')[0].rstrip('.')} in {name}, {where}"[:300]
    return what[:300]
