"""``kb bench memory-faults``: kills, bit flips, a full disk and crowds, against a real memory on disk.

A child process writes, compacts, merges or saves the index and names every entry on its standard
output after the memory has acknowledged it; it is killed at a random moment. After each fault the
memory is opened afresh: every acknowledged entry must be there with the content it was written
with, every answer must be an entry that somebody wrote, and ``verify`` must say what was damaged.
The content of an entry is a function of its number, so that a wrong record cannot look right.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kb_env.types import KbError, Profile, Program
from memory.entries import Experience, Situation, Stored
from memory.store import Memory

WORK = ("write", "compact", "index", "merge")


@dataclass(frozen=True)
class Args:
    """Hurt a memory in every way and count what is lost."""

    kills: int = 200
    """kill -9 at this many random moments, in turn of writing, compaction, index save and merge"""
    flips: int = 200
    """bits flipped, one at a time, in log, index and header"""
    seed: int = 0
    """of moments and places"""
    json: bool = False
    """print one JSON object as the last line"""


@dataclass
class Report:
    """What was found over all trials of one kind; everything but ``trials`` and ``reported`` must be 0."""

    trials: int = 0
    lost: int = 0
    wrong: int = 0
    crashed: int = 0
    silent: int = 0
    reported: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.wrong or self.crashed or self.silent)


def entries(number: int) -> tuple[Stored, Experience]:
    """Program and step number ``number``; every field that can vary is a function of it."""
    names = ("expf", "logf", "sqrtf", "rsqrtf", "tanhf", "erff", "fmaf", "fmaxf", "fminf", "powf")
    body = " ".join(f"x[i] += {names[int(digit)]}(x[i], {number}.0f);" for digit in f"{number:05}")
    program = Program("softmax", f"__global__ void k{number}(float* x) {{ int i = threadIdx.x; {body} }}")
    profile = Profile("sim", dram_percent=float(number % 97), registers=float(number % 251))
    gain = (number % 41) / 20 - 1
    return Stored(program), Experience(
        "softmax", "softmax", "builtin", "float32", "H200", "modelled", "faults", f"episode{number}", number % 7,
        program.key, None, f"edit {number}", "coalescing", "TIMED", gain, gain - 0.1, gain + 0.1, 1.5, profile,
        f"message {number}" * (number % 50), 6.0, time=float(number),
    )  # fmt: skip


# -- the child -------------------------------------------------------------------------------------


def child(work: str, folder: Path, start: int) -> None:
    """Work until killed; a line for each acknowledged entry, and one for each finished upkeep."""
    memory = Memory(folder, sync="none")
    number = start
    while True:
        memory.add(entries(number))
        print(number, flush=True)
        number += 1
        if work == "compact" and number % 3 == 0:
            memory.compact()
        if work == "index" and number % 3 == 0:
            memory.save_index()


def writer(work: str, folder: Path, start: int) -> subprocess.Popen[str]:
    """A process that does :func:`child`."""
    script = "import sys; from pathlib import Path; from experiments.bench_memory_faults import child;"
    script += "child(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))"
    command = [sys.executable, "-c", script, work, str(folder), str(start)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def numbers(lines: Iterable[str]) -> set[int]:
    """What whole lines acknowledge; the last one may be cut off."""
    return {int(line) for line in lines if line.endswith("\n")}


def killed(work: str, folder: Path, start: int, after: float) -> set[int]:
    """Run a child and kill it ``after`` seconds from its first line; the numbers it acknowledged."""
    with writer(work, folder, start) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        found = numbers([first, *process.stdout])
    if process.returncode != -signal.SIGKILL:
        raise KbError(f"a child that should {work} ended by itself ({process.returncode})")
    return found


# -- judging ---------------------------------------------------------------------------------------


def judge(folder: Path, expected: set[int], report: Report, damaged: bool = False) -> set[int]:
    """Open the memory in a process of its own and compare; the numbers found."""
    script = "import sys; from pathlib import Path; from experiments.bench_memory_faults import look;"
    script += "look(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        report.crashed += 1
        report.notes.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no word")
        return set()
    facts = json.loads(done.stdout.splitlines()[-1])
    found = set(facts["found"])
    missing = len(expected - found)
    report.wrong += facts["wrong"]
    report.reported += facts["damage"] > 0
    if damaged:  # one flipped bit may cost what it hit, an entry or a program, but says so
        report.lost += max(0, missing - 1)
        report.silent += bool(missing) and not facts["damage"]
    else:
        report.lost += missing
    return found


def look(folder: Path) -> None:
    """Everything a reader can get at, checked against what was written; one JSON line."""
    memory = Memory(folder)
    found, wrong = set(), 0
    for entry in memory.entries():
        if isinstance(entry, Experience):
            number = int(entry.time)
            found.add(number)
            wrong += entry.id != entries(number)[1].id
    answers = memory.recall(place(max(found, default=0)), 20)
    for item in answers:
        number = int(item.record.time)
        wrong += item.record.id != entries(number)[1].id
        wrong += item.before is not None and item.before != entries(number)[0].program
    verified = memory.verify()
    damage = len(verified.damage) + verified.unreadable + (verified.index == "rebuilt")
    memory.close()
    print(json.dumps({"found": sorted(found), "wrong": wrong, "damage": damage}))


def place(number: int) -> Situation:
    stored, record = entries(number)
    return Situation(stored.program.text, record.profile, "softmax", "float32", "H200", 6.0)


# -- the trials ------------------------------------------------------------------------------------


def kills(folder: Path, args: Args) -> dict[str, Report]:
    """The same memory over all kills of one kind: each goes on from what the last one left."""
    rng = random.Random(args.seed)
    other = folder / "other"
    with Memory(other, sync="none") as memory:
        for number in range(50_000, 50_400):
            memory.add(entries(number))
    reports = {work: Report() for work in WORK}
    known: dict[str, set[int]] = {work: set() for work in WORK}
    for trial in range(args.kills):
        work = WORK[trial % len(WORK)]
        report, home = reports[work], folder / work
        if work == "merge":
            shutil.rmtree(home, ignore_errors=True)  # there is something to merge each time
            known[work] = killed("write", home, 1000 * trial, 0.0)
            # The first line comes after the merge is over: kill by the clock from the start.
            merging(home, other, rng.random() * 0.5)
        else:
            start = max(known[work], default=0) + 2  # one more may have been written unseen
            known[work] |= killed(work, home, start, rng.random() * 0.05)
        report.trials += 1
        known[work] |= judge(home, known[work], report)
    return reports


def merging(home: Path, other: Path, after: float) -> None:
    """Kill a merge ``after`` seconds from the moment at which the process is ready."""
    script = "import sys; from pathlib import Path; from memory.store import Memory; m = Memory(Path(sys.argv[1]));"
    script += "o = Memory(Path(sys.argv[2]), frozen=True); print('ready', flush=True);"
    script += "[m.add([entry]) for entry in o.entries()]; m.merge(o); m.close()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(home), str(other)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        process.send_signal(signal.SIGKILL)


def flips(folder: Path, args: Args) -> Report:
    """One bit at a time, in turn of log, vectors, rows and header; each on a fresh copy."""
    rng = random.Random(args.seed + 1)
    whole, report = folder / "whole", Report()
    with Memory(whole) as memory:
        for number in range(60):
            memory.add(entries(number))
        memory.save_index()
    expected = set(range(60))
    for trial in range(args.flips):
        hurt = folder / "hurt"
        shutil.rmtree(hurt, ignore_errors=True)
        shutil.copytree(whole, hurt)
        kinds = ("log/gen-*/*.seg", "index-*.bin", "index-*.bin.state", "index.json")
        path = next(hurt.glob(kinds[trial % len(kinds)]))
        raw = bytearray(path.read_bytes())
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        report.trials += 1
        judge(hurt, expected, report, damaged=True)
    return report


def full_disk(folder: Path) -> Report:
    """Writes that fail half-way by RLIMIT_FSIZE, as a full disk makes them fail, then room again."""
    report, memory, number = Report(), Memory(folder / "full", sync="none"), 0
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    known: set[int] = set()
    try:
        for room in range(200, 6000, 97):
            size = sum(item.path.stat().st_size for item in memory.log.segments())
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limit[1]))
            for work in (partial(memory.add, entries(number)), memory.compact, memory.save_index):
                try:
                    work()
                except KbError:
                    report.reported += 1
                else:
                    if number in {
                        int(item.time) for item in memory.entries() if isinstance(item, Experience)
                    }:
                        known.add(number)
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            number += 1
            report.trials += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, old)
    memory.add(entries(number))
    memory.close()
    judge(folder / "full", known | {number}, report)
    return report


def crowd(folder: Path, seconds: float) -> Report:
    """Two writers and one that writes and compacts, a reader that follows them all the time."""
    report, home = Report(), folder / "crowd"
    Memory(home, sync="none").close()
    processes = [
        writer(work, home, start) for work, start in (("write", 0), ("write", 100_000), ("compact", 200_000))
    ]
    known: set[int] = set()
    for process in processes:
        assert process.stdout is not None
        known.add(int(process.stdout.readline()))
    until, memory = time.monotonic() + seconds, Memory(home)
    while time.monotonic() < until:
        memory.refresh()
        report.trials += 1
        for item in memory.recall(place(report.trials), 5):
            report.wrong += item.record.id != entries(int(item.record.time))[1].id
    for process in processes:
        report.crashed += process.poll() is not None
        process.kill()
        assert process.stdout is not None
        known |= numbers(process.stdout)
        process.wait()
        process.stdout.close()
    memory.close()
    judge(home, known, report)
    report.notes.append(f"{len(known)} entries acknowledged")
    return report


def run(args: Args, folder: Path) -> dict[str, Report]:
    """All trials in a folder of their own."""
    found = {f"kill -9, {work}": report for work, report in kills(folder, args).items()}
    found["bit flips"] = flips(folder, args)
    trials: Sequence[tuple[str, Callable[[], Report]]] = (
        ("full disk", lambda: full_disk(folder)),
        ("crowd", lambda: crowd(folder, 0.05 * args.kills)),
    )
    return found | {name: trial() for name, trial in trials}


def main(args: Args) -> int:
    folder = Path(tempfile.mkdtemp(prefix="kb-faults-"))
    try:
        reports = run(args, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("| fault | trials | lost | wrong | crashed | silent | reported |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, item in reports.items():
        row = (item.trials, item.lost, item.wrong, item.crashed, item.silent, item.reported)
        print(
            f"| {name} | " + " | ".join(map(str, row)) + " |" + "".join(f" {note}" for note in item.notes[:3])
        )
    if args.json:
        print(json.dumps({name: vars(item) for name, item in reports.items()}))
    return 0 if all(item.ok for item in reports.values()) else 1
