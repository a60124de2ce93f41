"""The nouns of kb-env: frozen dataclasses that every other part speaks in.

This module imports the standard library only. A stage that was not reached is ``None``, a
number that was not measured is NaN or ``None``, never a sentinel. What a candidate program does
wrong is data in these records; only the harness's own failure raises.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import math
import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum

#: Element types a kernel argument may have, and their size in bytes.
DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

#: How each element type is spelled in a C++ declaration.
DTYPE_CPP: dict[str, str] = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


class KbError(Exception):
    """A failure of the harness or of its use: one line that names the remedy."""


class Status(str, Enum):
    """How one step ended."""

    BAD_EDIT = "BAD_EDIT"
    BUILD_FAILED = "BUILD_FAILED"
    REFUSED = "REFUSED"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED_OUT"
    WRONG = "WRONG"
    TIMED = "TIMED"
    UNRECORDED = "UNRECORDED"

    def __str__(self) -> str:
        return self.value


_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


#: Building a syntax tree is not safe in two threads at once before CPython 3.12 (SystemError
#: "AST constructor recursion depth mismatch", seen twice in an hour of builds side by side).
_PARSING = threading.Lock()


@functools.lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr:
    with _PARSING:
        return ast.parse(expression, mode="eval").body


def arithmetic(expression: str | int | float, sizes: Mapping[str, int]) -> int | float:
    """Value of a small arithmetic expression over named sizes, such as ``"rows * (cols + 1)"``.

    Raises:
        KbError: if the expression holds anything but numbers, names of sizes and ``+ - * // / % **``.
    """
    if isinstance(expression, (int, float)):
        return expression

    def value(node: ast.AST) -> int | float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.Name) and node.id in sizes:
            return sizes[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
        raise KbError(
            f"cannot evaluate {expression!r}: use numbers, + - * // / % ** and the sizes {sorted(sizes)}"
        )

    try:
        return value(_parsed(expression))
    except (SyntaxError, ZeroDivisionError) as error:
        raise KbError(f"cannot evaluate {expression!r} over sizes {sorted(sizes)}: {error}") from error


@dataclass(frozen=True)
class Argument:
    """One argument of a task's entry function.

    ``kind`` is ``input`` (const pointer), ``output`` (pointer, poisoned before each run), ``inout``
    (pointer, holds an input and is checked as an output) or ``scalar`` (passed by value).
    ``shape`` holds one expression over the sizes per dimension; a scalar has none and takes
    ``value``, an expression (default: the size of its own name).
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[str | int, ...] = ()
    value: str | int | float | None = None

    def dims(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(int(arithmetic(item, sizes)) for item in self.shape)

    def elements(self, sizes: Mapping[str, int]) -> int:
        return math.prod(self.dims(sizes))

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        return self.elements(sizes) * DTYPE_BYTES[self.dtype]

    def scalar(self, sizes: Mapping[str, int]) -> int | float:
        return arithmetic(self.name if self.value is None else self.value, sizes)

    @property
    def cpp(self) -> str:
        base = DTYPE_CPP[self.dtype]
        if self.kind == "scalar":
            return f"{base} {self.name}"
        return f"{'const ' if self.kind == 'input' else ''}{base}* {self.name}"


@dataclass(frozen=True)
class Case:
    """One set of sizes a program is checked or timed at."""

    name: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Task:
    """A problem: what to compute, the honest initial program, and how it is checked and timed.

    ``reference`` is the text of the trusted Python module that makes inputs and the expected
    result (see docs/tasks.md); it never reaches a process that runs candidate code.
    ``family`` groups tasks of one operator across suites, for hold-outs. ``accumulate`` is the
    declared accumulate type that the tolerance derives from. ``bytes_moved`` and ``flops`` are
    expressions over the sizes: compulsory device-memory traffic and necessary operations.
    """

    name: str
    title: str
    description: str
    suite: str
    family: str
    source: str
    reference: str
    entry: str
    arguments: tuple[Argument, ...]
    check: tuple[Case, ...]
    bench: tuple[Case, ...]
    dtype: str
    accumulate: str
    bytes_moved: str
    flops: str
    #: which peak the operations count against: fp32, fp16 (tensor cores), int32, ...
    unit: str = "float32"
    workspace_bytes: int = 1 << 30
    language: str = "cuda"
    #: smaller stand-ins for the check cases where the full ones are too slow on a CPU
    check_small: tuple[Case, ...] = ()
    tags: tuple[str, ...] = ()
    #: directory the task came from, for right/ and wrong/; not part of the task's identity
    folder: str | None = field(default=None, compare=False)

    @property
    def signature(self) -> str:
        """C++ declaration of the entry function that every program must define."""
        return f"void {self.entry}({', '.join(argument.cpp for argument in self.arguments)})"

    @property
    def key(self) -> str:
        """Hash of all that decides what is computed, checked and timed."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "folder"}
        facts["arguments"] = [vars(argument) for argument in self.arguments]
        for cases in ("check", "bench", "check_small"):
            facts[cases] = [[case.name, dict(case.sizes)] for case in getattr(self, cases)]
        return digest(json.dumps(facts, sort_keys=True, default=list))

    @property
    def initial(self) -> Program:
        return Program(self.name, self.source, self.language)


def digest(text: str | bytes) -> str:
    """Content hash used for every key: 32 hex digits of SHA-256."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class Program:
    """A candidate: the whole source text for one task."""

    task: str
    text: str
    language: str = "cuda"

    @property
    def key(self) -> str:
        return digest("\0".join((self.task, self.language, self.text)))


@dataclass(frozen=True)
class Edit:
    """Replace one exact, unique occurrence of ``search``; an empty search replaces the whole file."""

    search: str
    replace: str


@dataclass(frozen=True)
class BuildResult:
    """What the compiler made of a program. ``artifact`` is its folder in the build store."""

    ok: bool
    log: str
    seconds: float
    artifact: str | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    spills: int | None = None
    cached: bool = False


@dataclass(frozen=True)
class Verification:
    """Outcome of comparing every output element of every check case.

    ``worst`` is the largest error as a multiple of its bound (1.0 is at the bound).
    ``fault`` names the kind: ``value``, ``unwritten``, ``guard``, ``input-changed``, ``nan``, ...
    """

    ok: bool
    fault: str | None
    cases_run: int
    message: str
    worst: float | None = None


@dataclass(frozen=True)
class Timing:
    """Paired times of candidate and baseline in one bench case, in microseconds.

    ``speedup`` is baseline over candidate; ``speedup_low`` and ``speedup_high`` bound its 95 %
    interval. ``source`` is ``measured`` or ``modelled``; ``baseline`` is ``initial``, ``best``,
    ``eager`` or ``compile``.
    """

    case: str
    baseline: str
    candidate_us: tuple[float, ...]
    baseline_us: tuple[float, ...]
    speedup: float
    speedup_low: float
    speedup_high: float
    source: str
    floor_us: float | None = None


@dataclass(frozen=True)
class Profile:
    """The fixed list of named numbers; absent is NaN. ``source`` is ``ncu``, ``static`` or ``sim``."""

    source: str
    dram_percent: float = math.nan
    l2_hit_percent: float = math.nan
    l1_hit_percent: float = math.nan
    sm_percent: float = math.nan
    tensor_percent: float = math.nan
    fp_percent: float = math.nan
    issue_percent: float = math.nan
    occupancy_percent: float = math.nan
    sectors_per_request: float = math.nan
    bank_conflict_ways: float = math.nan
    branch_efficiency_percent: float = math.nan
    registers: float = math.nan
    shared_bytes: float = math.nan
    spill_bytes: float = math.nan
    grid_waves: float = math.nan
    bytes_over_floor: float = math.nan
    roofline_percent: float = math.nan
    launches: float = math.nan

    def numbers(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) for name in PROFILE_NAMES)


PROFILE_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Profile) if f.name != "source")


@dataclass(frozen=True)
class Fault:
    """Where and why an evaluation ended before it was timed."""

    status: Status
    stage: str
    message: str


@dataclass(frozen=True)
class Evaluation:
    """Everything one evaluation found. ``key`` identifies cubin and plan: equal keys, equal evaluation.

    ``seconds`` holds the phases' wall time: build, record, verify, time, profile. ``limiter`` is
    the evaluator's word for what bounds the kernel, where it knows.
    """

    build: BuildResult
    verification: Verification | None
    timings: tuple[Timing, ...] | None
    profile: Profile | None
    trust: str
    source: str
    device: str
    key: str | None = None
    fault: Fault | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    limiter: str | None = None
    health: Mapping[str, float | str] = field(default_factory=dict)
    #: the program against library implementations timed in another process: for reports, never for rewards
    libraries: tuple[Timing, ...] = ()

    @property
    def status(self) -> Status:
        return Status.TIMED if self.fault is None else self.fault.status

    @property
    def verified(self) -> bool:
        return self.fault is None and self.verification is not None and self.verification.ok

    def _mean(self, name: str) -> float | None:
        if not self.verified or not self.timings:
            return None
        return math.exp(sum(math.log(getattr(t, name)) for t in self.timings) / len(self.timings))

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the bench cases, against the timings' baseline; None if not timed."""
        return self._mean("speedup")

    @property
    def speedup_low(self) -> float | None:
        return self._mean("speedup_low")

    @property
    def speedup_high(self) -> float | None:
        return self._mean("speedup_high")

    @property
    def message(self) -> str:
        if self.fault is not None:
            return self.fault.message
        return self.verification.message if self.verification is not None else ""


@dataclass(frozen=True)
class StepRecord:
    """One step: what was tried and what came of it.

    ``before`` is the program the action was applied to; ``after`` the edited one (None if the edit
    did not apply). ``best_speedup`` is the confirmed best so far, after this step, against initial.
    ``confirmation`` is the re-measurement against the previous best that a payout rests on.
    """

    index: int
    action: str
    before: Program
    after: Program | None
    evaluation: Evaluation | None
    status: Status
    feedback: str
    reward: float
    speedup: float | None
    best_speedup: float
    confirmation: Evaluation | None = None
    cached: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    #: what the policy wrote down about its choice: technique, predicted gain, propensity, usage
    notes: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Episode:
    """A whole run of one policy on one task."""

    task: str
    policy: str
    seed: int
    device: str
    source: str
    trust: str
    versions: Mapping[str, str]
    initial: Program
    initial_evaluation: Evaluation | None
    steps: tuple[StepRecord, ...]
    best: Program
    best_speedup: float
    #: lower and upper end of the interval around best_speedup, where measured
    best_low: float | None = None
    best_high: float | None = None
    #: why the episode ended: submitted, steps, budget, fault: CODE, or running
    ended: str = "running"
