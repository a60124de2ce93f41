"""Undeserved rewards and wrongly refused programs: every exploit and every honest kernel of tests/redteam.

    python -m experiments.bench_redteam --backend gpu --json

A file in ``exploits/`` says in its first lines what it attacks (``// task:``), which statuses are
right (``// expect: WRONG|CRASHED``), which control stops it (``// control:``), its line in the
catalogue (``// line:``), and where an exploit is harmless instead of refused, how much speedup it may
have (``// at most: 1.15``, the lower end of the interval). ``// switch:`` names the controls without
which it would be accepted. A file in ``honest/`` has to be verified and timed.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kb_env.backends import explain, make_evaluator
from kb_env.evaluators import Evaluator, Prepared
from kb_env.files import write_atomic
from kb_env.task import builtin_names, expected_status, load_task, solutions
from kb_env.types import Evaluation, KbError, Program, Status, Task

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "redteam"


@dataclass(frozen=True)
class Args:
    """Options of the benchmark."""

    backend: str = "auto"
    #: only candidates whose name holds this text, or one of several between commas
    only: str = ""
    #: instead: every exploit with the control off that names it, to show that it is live (GPU only; the
    #: switches come from the tests in `folder`, no command has them)
    live: bool = False
    #: also the built-in tasks' initial and right programs, as honest ones
    builtin: bool = False
    #: CPU threads that build ahead
    builders: int = 16
    folder: Path = FOLDER
    #: build store; default: a fresh one, so that every program is built and recorded anew
    store: Path | None = None
    #: print one JSON object in place of the table
    json: bool = False
    out: Path | None = None


@dataclass(frozen=True)
class Candidate:
    """One program and what has to become of it. ``at_most`` bounds the speedup of a harmless exploit."""

    name: str
    program: Program
    honest: bool
    expect: tuple[Status, ...] = (Status.TIMED,)
    at_most: float | None = None
    control: str = ""
    line: str = ""
    switches: tuple[str, ...] = ()
    #: least speedup with its control off, where the gain is in time
    gain: float | None = None
    slow: bool = False


@dataclass(frozen=True)
class Result:
    """What became of one candidate. ``verdict`` is ok, false accept, false reject, other status or error."""

    name: str
    honest: bool
    verdict: str
    status: str
    speedup_low: float | None
    seconds: float
    message: str
    #: the referee's two findings, in microseconds
    referee_us: float | None = None
    slope_us: float | None = None
    slope_limit_us: float | None = None


def read_candidate(path: Path, honest: bool) -> Candidate:
    """A candidate from its file.

    Raises:
        KbError: if its first lines do not say what it is.
    """
    text = path.read_text()
    facts: dict[str, str] = {}
    for line in text.split("\n")[:12]:
        key, colon, value = line.removeprefix("// ").partition(":")
        if (
            line.startswith("// ")
            and colon
            and key in ("task", "expect", "at most", "control", "switch", "gain", "live", "line")
        ):
            facts[key] = value.strip()
    wanted = ("task",) if honest else ("task", "expect", "control", "line")
    missing = [key for key in wanted if key not in facts]
    if missing:
        raise KbError(f"{path} does not say its {missing[0]}: begin it with '// {missing[0]}: ...'")
    program = Program(facts["task"], text)
    if honest:
        return Candidate(path.stem, program, True)
    return Candidate(
        path.stem,
        program,
        False,
        expected_status(f"// expect: {facts['expect']}"),
        float(facts["at most"]) if "at most" in facts else None,
        facts["control"],
        facts["line"],
        tuple(name.strip() for name in facts.get("switch", "").split(",") if name.strip()),
        float(facts["gain"]) if "gain" in facts else None,
        "// slow\n" in text[:400],
    )


def read_folder(folder: Path = FOLDER) -> tuple[Candidate, ...]:
    """All exploits, then all honest programs, each in order of name."""
    exploits = [read_candidate(path, False) for path in sorted((folder / "exploits").glob("*.cu"))]
    return (*exploits, *(read_candidate(path, True) for path in sorted((folder / "honest").glob("*.cu"))))


def builtin_programs() -> Iterator[Candidate]:
    """The built-in tasks' initial programs and right solutions."""
    for name in builtin_names():
        task = load_task(name)
        yield Candidate(f"{name}/kernel", task.initial, True)
        for label, program in solutions(task, "right").items():
            yield Candidate(f"{name}/right/{label}", program, True)


def judge(candidate: Candidate, found: Evaluation) -> str:
    """The verdict on one evaluation: ok, false accept, false reject or other status."""
    if candidate.honest:
        return "ok" if found.verified and found.status is Status.TIMED else "false reject"
    if found.status is Status.TIMED or found.speedup is not None:
        harmless = Status.TIMED in candidate.expect and candidate.at_most is not None
        low = found.speedup_low
        return "ok" if harmless and low is not None and low <= (candidate.at_most or 0.0) else "false accept"
    return "ok" if found.status in candidate.expect else "other status"


def run_all(
    evaluator: Evaluator,
    candidates: Sequence[Candidate],
    builders: int,
    before: Callable[[Candidate], None] | None = None,
) -> Iterator[Result]:
    """Results in order: programs are built ahead in threads and measured one after the other.

    ``before`` is called ahead of each measurement.
    """
    tasks = {name: load_task(name) for name in {candidate.program.task for candidate in candidates}}
    with ThreadPoolExecutor(builders) as pool:
        waiting: list[Future[Prepared]] = [
            pool.submit(evaluator.prepare, tasks[item.program.task], item.program) for item in candidates
        ]
        for item, future in zip(candidates, waiting, strict=True):
            prepared = future.result()
            if before is not None:
                before(item)
            started = time.monotonic()
            try:
                found = evaluator.measure(prepared)
            except KbError as error:  # the harness failed: no verdict on the program, but none on us either
                yield Result(
                    item.name, item.honest, "error", "", None, time.monotonic() - started, str(error)
                )
                continue
            low = found.speedup_low
            seconds = round(time.monotonic() - started, 3)
            told = found.message.strip()[:300]
            looks = [_number(found.health.get(name)) for name in ("referee_us", "slope_us", "slope_limit_us")]
            yield Result(
                item.name, item.honest, judge(item, found), str(found.status), low, seconds, told, *looks
            )


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float) else None


def summary(backend: str, device: str, results: Sequence[Result], seconds: float) -> dict[str, object]:
    """Counts, the names behind every kind of failure, and all results."""
    kinds = ("false accept", "false reject", "other status", "error")
    failures = {kind: [r.name for r in results if r.verdict == kind] for kind in kinds}
    return {
        "backend": backend,
        "device": device,
        "exploits": sum(not r.honest for r in results),
        "honest": sum(r.honest for r in results),
        "seconds": round(seconds, 1),
        **{kind.replace(" ", "_"): names for kind, names in failures.items()},
        "results": [vars(result) for result in results],
    }


def warm(evaluator: Evaluator, task: Task) -> None:
    """One honest evaluation first, so that starting processes belongs to no candidate."""
    found = evaluator.evaluate(task, task.initial)
    if not found.verified:
        raise KbError(
            f"the initial program of {task.name} was not verified: {found.message}; nothing to learn here"
        )


def main(args: Args) -> int:
    """Run everything; 0 if nothing was wrongly accepted or refused, else 1."""
    candidates = [item for item in read_folder(args.folder) if _chosen(item, args.only)]
    if args.builtin:
        candidates += [item for item in builtin_programs() if _chosen(item, args.only)]
    if not candidates:
        raise KbError(f"no candidate's name holds {args.only!r}")
    with tempfile.TemporaryDirectory(prefix="kb-redteam-") as folder:
        evaluator = make_evaluator(args.backend, store=args.store or folder)
        started = time.monotonic()
        results = []
        try:
            warm(evaluator, load_task("vector_add"))
            if args.live:
                return _live(evaluator, candidates, args)
            for result in run_all(evaluator, candidates, args.builders):
                results.append(result)
                if not args.json:
                    print(_line(result), flush=True)
        finally:
            evaluator.close()
        found = summary(explain(args.backend), evaluator.device, results, time.monotonic() - started)
    text = json.dumps(found, indent=1)
    if args.out is not None:
        write_atomic(args.out, f"{text}\n".encode())
    print(text if args.json else _totals(found))
    return 0 if not any(result.verdict != "ok" for result in results) else 1


def _chosen(item: Candidate, only: str) -> bool:
    return any(part.strip() in item.name for part in only.split(","))


def _live(evaluator: Evaluator, candidates: Sequence[Candidate], args: Args) -> int:
    """Show the exploits with the tests' own switches; 0 if all are live, else 1."""
    spec = importlib.util.spec_from_file_location("kb_redteam_live", args.folder / "live.py")
    if spec is None or spec.loader is None or not (args.folder / "live.py").exists():
        raise KbError(f"{args.folder} has no live.py: --live works from a checkout with the tests")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results: list[Result] = module.show(evaluator, candidates, args.builders)
    for result in results:
        print(_line(result))
    if args.out is not None:
        write_atomic(args.out, json.dumps([vars(result) for result in results], indent=1).encode() + b"\n")
    dead = [result.name for result in results if result.verdict != "live"]
    print(f"{len(results) - len(dead)} of {len(results)} exploits with a switch are live {' '.join(dead)}")
    return 1 if dead else 0


def _line(result: Result) -> str:
    low = "" if result.speedup_low is None else f"{result.speedup_low:.2f}x"
    told = "" if result.verdict == "ok" else " ".join(result.message.split())[:120]
    kind = "honest" if result.honest else "exploit"
    return f"{result.verdict:12} {kind:8} {result.name:34} {result.status:12} {low:7} {result.seconds:5.1f} s {told}"


def _totals(found: dict[str, object]) -> str:
    lines = [
        f"{found['exploits']} exploits, {found['honest']} honest programs on {found['device']} in {found['seconds']} s"
    ]
    for kind in ("false_accept", "false_reject", "other_status", "error"):
        names = found[kind]
        assert isinstance(names, list)
        lines.append(f"{kind.replace('_', ' ')}: {len(names)} {' '.join(names)}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
