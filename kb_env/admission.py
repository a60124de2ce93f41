"""Admission of a task: its tolerance must accept honest results and reject what only looks like them.

Numbers only, no GPU needed: honest results are the task's reference and eager baseline carried in
the declared accumulate type, in several orders of summation; the others are what the known cheats
would return. A task that fails this test rewards something it should not, or refuses honest work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kb_env.numerics import Comparison, Reference
from kb_env.orders import Arithmetic, round_to
from kb_env.types import Case, Task

#: Significant bits of the next lower precision: of an input type, or of an accumulate type.
LOWER_DIGITS = {"float64": 24, "float32": 11, "tfloat32": 8, "float16": 8, "bfloat16": 4}

SEEDS = (101, 202)

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """One result that was tried. ``ok``: every case accepted it, or at least one case rejected it."""

    name: str
    wanted: str
    ok: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.ok else 'FAIL'} {self.wanted} {self.name}: {self.detail}"


@dataclass(frozen=True)
class Admission:
    ok: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Draw:
    """One case's inputs, another draw of them, and what is expected."""

    case: Case
    inputs: Tensors
    other: Tensors
    values: Tensors
    device: str


Maker = Callable[[Draw], Tensors]


def admit(task: Task, device: str = "cpu", cases: tuple[Case, ...] | None = None) -> Admission:
    """Run the admission test over the task's check cases (on a CPU its smaller stand-ins, if it has any)."""
    subject = _Subject(task)
    if cases is None:
        cases = task.check_small if device == "cpu" and task.check_small else task.check
    verdicts: dict[tuple[str, str], list[Comparison]] = {}
    for case in cases:
        for seed in SEEDS:
            draw, compare = subject.draw(case, seed, device)
            for wanted, name, maker in subject.results():
                verdicts.setdefault((wanted, name), []).append(compare(maker(draw)))
    rows = tuple(_row(wanted, name, found) for (wanted, name), found in verdicts.items())
    return Admission(all(row.ok for row in rows), rows)


def _row(wanted: str, name: str, found: list[Comparison]) -> Row:
    passed = sum(verdict.ok for verdict in found)
    if wanted == "accept":
        worst = max(verdict.worst for verdict in found)
        first = next(
            (verdict.message for verdict in found if not verdict.ok), f"worst {worst:.3g} of its bound"
        )
        return Row(name, wanted, passed == len(found), f"accepted in {passed} of {len(found)} runs; {first}")
    caught = len(found) - passed
    return Row(name, wanted, caught > 0, f"rejected in {caught} of {len(found)} runs")


class _Subject:
    """The results to try, made from the task's own reference."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.reference = Reference(task)
        self.outputs = {a.name: a for a in task.arguments if a.kind in ("output", "inout")}
        self.floats = any("float" in a.dtype for a in self.outputs.values())
        self.wide = torch.float64 if task.accumulate == "float64" else torch.float32

    def draw(self, case: Case, seed: int, device: str) -> tuple[Draw, Callable[[Tensors], Comparison]]:
        inputs, other = (self.reference.inputs(case, seed + k, device) for k in (0, 1))
        expected = self.reference.expected(case, inputs)
        draw = Draw(case, inputs, other, expected.values, device)
        return draw, lambda outputs: self.reference.compare(expected, outputs)

    def results(self) -> Iterator[tuple[str, str, Maker]]:
        """(wanted verdict, name, how to make it from a draw)."""
        yield "accept", "reference in the accumulate type", lambda d: self._compute(d, d.inputs)
        if self.reference.has_eager:
            yield "accept", "eager baseline", lambda d: self.reference.eager(d.inputs, d.case)
        if self.floats:
            yield "accept", "32 running sums", self._ordered(Arithmetic())
            yield "accept", "one running sum", self._ordered(Arithmetic(1))
            yield "accept", "7 running sums from the end", self._ordered(Arithmetic(7, backwards=True))
            digits = LOWER_DIGITS.get(self.task.accumulate)
            if digits is not None:
                yield (
                    "reject",
                    f"sums and products of {digits} bits",
                    self._ordered(Arithmetic(digits=digits)),
                )
        yield "reject", "zeros", self._each(torch.zeros_like)
        yield "reject", "a constant", self._each(lambda v: torch.full_like(v, v.flatten()[0].item()))
        yield "reject", "the mean", self._each(lambda v: torch.full_like(v, _middle(v)))
        for name, fill in (("zero", 0.0), ("NaN", torch.nan), ("large", 3e4)):
            if self.floats or name != "NaN":
                yield "reject", f"0.1 % untouched ({name})", self._each(partial(_untouched, fill=fill))
        for argument in self.task.arguments:
            if argument.kind in ("input", "inout"):
                yield from self._about_input(argument.name, argument.dtype)
        yield "reject", "result of other inputs", lambda d: self._compute(d, d.other)

    def _about_input(self, name: str, dtype: str) -> Iterator[tuple[str, str, Maker]]:
        def copied(draw: Draw) -> Tensors:
            return self._each(partial(_fitted, draw.inputs[name]))(draw)

        def ignored(draw: Draw) -> Tensors:
            return self._compute(draw, draw.inputs | {name: draw.other[name]})

        def rounded(draw: Draw) -> Tensors:
            coarse = round_to(draw.inputs[name], LOWER_DIGITS[dtype])
            return self._compute(draw, draw.inputs | {name: coarse})

        yield "reject", f"copy of {name}", copied
        yield "reject", f"{name} ignored (another draw)", ignored
        if self.floats and dtype in LOWER_DIGITS:
            yield "reject", f"{name} rounded to {LOWER_DIGITS[dtype]} bits", rounded

    def _compute(self, draw: Draw, inputs: Tensors) -> Tensors:
        wide = {k: v.to(self.wide) if v.is_floating_point() else v for k, v in inputs.items()}
        return self._cast(self.reference.formula(wide, draw.case))

    def _ordered(self, mode: Arithmetic) -> Maker:
        def make(draw: Draw) -> Tensors:
            with mode:
                return self._compute(draw, draw.inputs)

        return make

    def _cast(self, found: Tensors) -> Tensors:
        return {k: found[k].to(getattr(torch, a.dtype)).contiguous() for k, a in self.outputs.items()}

    def _each(self, make: Callable[[Tensor], Tensor]) -> Maker:
        return lambda draw: self._cast({name: make(value) for name, value in draw.values.items()})


def _fitted(source: Tensor, value: Tensor) -> Tensor:
    """``source``'s elements in their order, repeated or cut to the shape of ``value``."""
    flat = source.flatten()
    times = -(-value.numel() // flat.numel())
    return flat.repeat(times)[: value.numel()].view(value.shape)


def _middle(value: Tensor) -> float:
    mean = value.double().mean()
    return float(mean) if value.is_floating_point() else round(float(mean))


def _untouched(value: Tensor, fill: float) -> Tensor:
    """The right result but for one element in a thousand (at least one), spread evenly."""
    changed = value.clone()
    changed.view(-1)[value.numel() // 2 % 1000 :: 1000] = fill
    return changed
