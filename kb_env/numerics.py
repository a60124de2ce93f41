"""What a task's outputs must be, and how far an honest program may be from it.

The expected result is computed in float64 on the inputs as rounded to their declared types. An
element y may differ from y64 by

    |y - y64| <= 4 * level + ulp,    level = slack * u * B * sqrt(min(n, 4096)),

u: unit round-off of the *declared accumulate type*; B: the task's ``magnitude`` (the size of the
terms the element is made of, such as sum |a||b|); n: its ``growth`` (reduction length; rounding
errors of a sum grow like sqrt(n), Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
section 2.8; beyond 4096 terms an honest sum is blocked); ulp: one unit in the last place of the
output type, at the scale of y64. ``slack``, between 1 and 4, follows the measured error of the
library baseline where the task has one. Besides the maximum, the root mean square of error over
bound is limited, which shows a lower precision that hides below the maximum; where the errors of a
whole output are one random walk (a scan), the task says so (``independent``), and the RMS may be as
large as one element's error. There is no absolute
constant: zeros pass only where the output type cannot tell y64 from zero. Integers are exact.
Every element counts, and so does every NaN and infinity.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kb_env.mismatch import describe, ratios
from kb_env.types import Argument, Case, KbError, Task

#: Unit round-off (half the spacing above 1) of the types sums may be carried in.
ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tfloat32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}

#: Largest error, and largest RMS error, in multiples of ``level``. An fp32 sum of n positive terms
#: taken one after the other has an RMS error of 0.24 u B sqrt(n), so honest orders have 3x to spare.
MAX_LEVELS = 4.0
RMS_LEVELS = 0.75

#: The output's own rounding: one ulp at most (2 u |y|), and its RMS (correct rounding has 0.41 u |y|).
MAX_ROUNDOFFS = 2.0
RMS_ROUNDOFFS = 0.75

GROWTH_CAP = 4096.0
#: Elements that the limit of the RMS (not the RMS itself) is taken over.
SAMPLE = 1 << 18
SLACK_CAP = 4.0


@dataclass(frozen=True)
class Expected:
    """What outputs must be, by output name, on the device of the inputs.

    ``values``: float64 (float outputs) or the declared type (integer outputs). ``bounds``: float64, the
    largest allowed error of each element (absent for integer outputs). ``rms``: 0-d float64, the largest
    allowed root mean square over all elements of error / bound.
    """

    values: dict[str, Tensor]
    bounds: dict[str, Tensor]
    rms: dict[str, Tensor]


@dataclass(frozen=True)
class Comparison:
    """Verdict over every element of every output.

    ``fault`` is None, ``value``, ``nan`` (not finite where a finite number was expected) or ``precision``
    (no element is over its bound but their RMS is). ``worst`` is the largest error as a multiple of its
    bound (infinite for a wrong integer or a wrong NaN). ``message`` says what differs and in what pattern.
    """

    ok: bool
    fault: str | None
    message: str
    worst: float


class Reference:
    """The trusted side of a task. Runs the task's reference module, never a candidate's code."""

    def __init__(self, task: Task) -> None:
        self.task = task
        name = f"<reference of {task.name}>"
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile(task.reference, name, "exec"), namespace)
        self._module = namespace
        self._outputs = {a.name: a for a in task.arguments if a.kind in ("output", "inout")}
        self._inputs = {a.name: a for a in task.arguments if a.kind in ("input", "inout")}
        self._slack: dict[tuple[tuple[tuple[str, int], ...], str], dict[str, Tensor]] = {}

    @property
    def has_eager(self) -> bool:
        return "eager" in self._module

    def inputs(self, case: Case, seed: int, device: str) -> dict[str, Tensor]:
        """Input and inout arguments by name, of declared type and shape, contiguous, on ``device``.

        The same seed gives the same values on the same kind of device.

        Raises:
            KbError: if the task's ``inputs`` returns other names or shapes than task.toml declares.
        """
        generator = torch.Generator(device=device).manual_seed(seed)
        drawn = self._module["inputs"](dict(case.sizes), generator, device)
        self._check(drawn, self._inputs, case, "inputs")
        return {
            name: drawn[name].to(getattr(torch, argument.dtype)).contiguous()
            for name, argument in self._inputs.items()
        }

    def expected(self, case: Case, inputs: Mapping[str, Tensor]) -> Expected:
        """Expected values and bounds for these inputs, computed in float64.

        Raises:
            KbError: if the task's functions return other names or shapes than task.toml declares.
        """
        values, scales = self._values_and_scales(case, inputs)
        slack = self._measured_slack(case, inputs)
        bounds, rms = {}, {}
        for name, scale in scales.items():
            # Full-size tensors in float64 are what an evaluation's time goes to: as few passes as can be.
            roundoff, size = self._rounding_size(name, values[name])
            level = scale * (MAX_LEVELS * slack.get(name, 1.0))
            bounds[name] = torch.add(level.expand_as(values[name]), size, alpha=MAX_ROUNDOFFS * roundoff)
            bound, rounding = (_sample(tensor) for tensor in (bounds[name], size))
            rounding = rounding * roundoff
            level = (bound - MAX_ROUNDOFFS * rounding).clamp_(min=0.0)
            share = (RMS_LEVELS / MAX_LEVELS * level + RMS_ROUNDOFFS * rounding) / bound
            share = torch.nan_to_num(share, nan=RMS_ROUNDOFFS / MAX_ROUNDOFFS)
            # Few independent errors scatter more: their RMS may reach the maximum's bound.
            spread = 1.0 + 3.0 / math.sqrt(self._independent(case, name, values[name]))
            rms[name] = (_rms(share) * spread).clamp(max=1.0)
        return Expected(values, bounds, rms)

    def compare(self, expected: Expected, outputs: Mapping[str, Tensor]) -> Comparison:
        """Compare every element of every output; one result is fetched from the device where all is well.

        Raises:
            KbError: if an output is missing or has another type or shape than declared.
        """
        found = []
        for name, argument in self._outputs.items():
            output, value = outputs.get(name), expected.values[name]
            if (
                output is None
                or output.shape != value.shape
                or output.dtype != getattr(torch, argument.dtype)
            ):
                raise KbError(
                    f"output {name!r} is {_kind(output)}, not {argument.dtype} {tuple(value.shape)}"
                )
            found.append(_summary(output, value, expected.bounds.get(name), expected.rms.get(name)))
        figures = torch.stack(found).tolist()
        worst = 0.0
        for (name, argument), (largest, rms, limit) in zip(self._outputs.items(), figures, strict=True):
            if not (largest <= 1.0 and rms <= limit):
                verdict = self._explain(name, argument, expected, outputs[name])
                if not verdict.ok:
                    return verdict
                largest = verdict.worst
            worst = max(worst, largest)
        return Comparison(True, None, f"every element within its bound (worst {worst:.3g} of it)", worst)

    def eager(self, inputs: Mapping[str, Tensor], case: Case) -> dict[str, Tensor]:
        """Outputs of the library baseline in the task's own types; float32 means float32, not TF32.

        Raises:
            KbError: if the task has no eager baseline.
        """
        if not self.has_eager:
            raise KbError(f"task {self.task.name} has no eager(inputs, sizes) in reference.py")
        with _full_float32():
            return self._module["eager"](dict(inputs), dict(case.sizes))

    def formula(self, inputs: Mapping[str, Tensor], case: Case) -> dict[str, Tensor]:
        """The task's reference in the inputs' own types: what the admission test tries variants of."""
        return self._module["reference"](dict(inputs), dict(case.sizes))

    def _explain(self, name: str, argument: Argument, expected: Expected, output: Tensor) -> Comparison:
        """The slow, exact path: runs where something is wrong or the expected result is not finite."""
        value, bound = expected.values[name], expected.bounds.get(name)
        ratio = ratios(output, value, bound)
        worst = float(ratio.amax())
        finite = ratio[torch.isfinite(ratio)]
        rms = float(_rms(finite)) if finite.numel() else 0.0
        limit = float(expected.rms[name]) if bound is not None else 1.0
        if worst > 1.0:
            wrong_nan = (
                (torch.isfinite(value) & ~torch.isfinite(output)).any() if bound is not None else False
            )
            message = describe(name, output, value, bound, ratio)
            return Comparison(False, "nan" if bool(wrong_nan) else "value", message, worst)
        if rms > limit:
            kind = self.task.accumulate
            message = (
                f"{name}: no element is over its bound, but the RMS error is {rms / limit:.3g} times "
                f"what {kind} arithmetic may give: carry sums and intermediates in {kind}"
            )
            return Comparison(False, "precision", message, worst)
        return Comparison(True, None, "", worst)

    def _values_and_scales(
        self, case: Case, inputs: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Expected values, and what ``level`` is before the slack (not expanded where it is one number)."""
        sizes = dict(case.sizes)
        wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        values = self._module["reference"](wide, sizes)
        self._check(values, self._outputs, case, "reference")
        magnitude = self._module["magnitude"](wide, sizes) if "magnitude" in self._module else {}
        growth = self._module["growth"](sizes) if "growth" in self._module else 1.0
        u = ROUNDOFF.get(self.task.accumulate, 0.0)
        scales = {}
        for name, argument in self._outputs.items():
            if not values[name].is_floating_point():
                values[name] = values[name].to(getattr(torch, argument.dtype))
                continue
            values[name] = values[name].double().contiguous()
            scale = magnitude.get(name)
            if scale is None:
                scale = _rms(torch.nan_to_num(values[name], posinf=0.0, neginf=0.0))
            terms = growth.get(name, 1.0) if isinstance(growth, Mapping) else growth
            scales[name] = scale.double() * (u * math.sqrt(min(terms, GROWTH_CAP)))
        return values, scales

    def _measured_slack(self, case: Case, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much wider than theory the levels must be for the library baseline, once a case and device.

        Draws its own inputs from a fixed seed, so that it does not depend on what was evaluated before.
        """
        if not self.has_eager:
            return {}
        device = str(next(iter(inputs.values())).device)
        key = (tuple(sorted(case.sizes.items())), device)
        if key not in self._slack:
            sample = self.inputs(case, 0, device)
            values, scales = self._values_and_scales(case, sample)
            outputs = self.eager(sample, case)
            self._slack[key] = {}
            for name, scale in scales.items():
                roundoff, size = self._rounding_size(name, values[name])
                honest = RMS_LEVELS * scale + RMS_ROUNDOFFS * roundoff * size
                error = torch.nan_to_num((outputs[name] - values[name]) / honest, posinf=0.0, neginf=0.0)
                self._slack[key][name] = (1.5 * _rms(error)).clamp(1.0, SLACK_CAP)
        return self._slack[key]

    def _independent(self, case: Case, name: str, value: Tensor) -> int:
        """How many of the output's rounding errors are independent of one another: all, if the task says nothing."""
        if "independent" not in self._module:
            return max(1, value.numel())
        told = self._module["independent"](dict(case.sizes))
        return max(1, int(told.get(name, value.numel()) if isinstance(told, Mapping) else told))

    def _rounding_size(self, name: str, value: Tensor) -> tuple[float, Tensor]:
        """Unit round-off of the output type, and each value's size, never below the smallest normal number.

        Their product is half an ulp: never below half the smallest subnormal number.
        """
        dtype = self._outputs[name].dtype
        return ROUNDOFF[dtype], value.abs().clamp_(min=torch.finfo(getattr(torch, dtype)).smallest_normal)

    def _check(self, found: object, declared: Mapping[str, Argument], case: Case, function: str) -> None:
        where = f"task {self.task.name}: {function}() in reference.py"
        if not isinstance(found, dict) or set(found) != set(declared):
            names = sorted(found) if isinstance(found, dict) else type(found).__name__
            raise KbError(f"{where} returned {names}, not a dict of {sorted(declared)}")
        for name, argument in declared.items():
            dims, is_float = argument.dims(case.sizes), "float" in argument.dtype
            if tuple(found[name].shape) != dims:
                raise KbError(f"{where} gave {name} shape {tuple(found[name].shape)}, not {dims}")
            if found[name].is_floating_point() != is_float:
                raise KbError(f"{where} gave {name} as {found[name].dtype}, not {argument.dtype}")


def _summary(output: Tensor, value: Tensor, bound: Tensor | None, limit: Tensor | None) -> Tensor:
    """(largest ratio, RMS of ratios, limit of the RMS) on the device. NaN anywhere gives NaN."""
    if bound is None or limit is None:
        wrong = torch.where((output != value).any(), torch.inf, 0.0).double()
        return torch.stack((wrong, torch.zeros_like(wrong), torch.ones_like(wrong)))
    ratio = (value - output).div_(bound)
    lowest, highest = torch.aminmax(ratio)
    return torch.stack((torch.maximum(-lowest, highest), _rms(ratio), limit))


def _sample(tensor: Tensor) -> Tensor:
    """Elements at even distances, at most about ``SAMPLE``: a mean of numbers within a factor of two of one
    another needs no more."""
    return tensor.reshape(-1)[:: tensor.numel() // SAMPLE | 1]


def _rms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor) / math.sqrt(max(1, tensor.numel()))


def _kind(output: Tensor | None) -> str:
    return "missing" if output is None else f"{output.dtype} {tuple(output.shape)}"


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """TF32 off in matrix products and convolutions: the latter have it on by default."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = False, False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
