"""What a wrong output looks like, in one line: which elements, how wrong, in what pattern.

Runs only after a comparison failed, so it may be slow. It reads a candidate's output as numbers and
prints numbers and names of the task alone.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def ratios(output: Tensor, value: Tensor, bound: Tensor | None) -> Tensor:
    """Error over bound per element, float64: 0 where equal (also inf and NaN), inf where hopeless."""
    if bound is None:
        return torch.where(output == value, 0.0, torch.inf).double()
    wide = output.double()
    same = (wide == value) | (torch.isnan(wide) & torch.isnan(value))
    ratio = ((wide - value).abs() / bound).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return torch.where(same, 0.0, ratio)


def describe(name: str, output: Tensor, value: Tensor, bound: Tensor | None, ratio: Tensor) -> str:
    """One line about an output of which some elements have a ratio above 1."""
    wrong = ratio > 1.0
    count, total = int(wrong.sum()), wrong.numel()
    first = _index(int(wrong.flatten().to(torch.uint8).argmax()), tuple(wrong.shape))
    last = total - 1 - int(wrong.flatten().flip(0).to(torch.uint8).argmax())
    parts = [
        f"{count} of {total} elements of {name} ({_percent(count, total)}) are wrong",
        f"first {name}{list(first)}: expected {_number(value[first])}, got {_number(output[first])}"
        + (f" (allowed error {float(bound[first]):.3g})" if bound is not None else ""),
    ]
    if count == 1:
        return "; ".join(parts)
    parts.append(f"last {name}{list(_index(last, tuple(wrong.shape)))}")
    parts += _patterns(output, value, wrong)
    return "; ".join(parts)


def _patterns(output: Tensor, value: Tensor, wrong: Tensor) -> list[str]:
    """What the wrong elements have in common, as far as it can be named."""
    found = []
    got, wanted = output[wrong].double(), value[wrong].double()
    bad = int((~torch.isfinite(got)).sum())
    if bad:
        found.append(f"{bad} of them are NaN or infinite")
    elif got.numel() > 1 and bool((got == got[0]).all()):
        found.append(f"all of them are {_number(got[0])}")
    else:
        quotient = (got / wanted)[wanted != 0]
        if quotient.numel() > 1:
            middle = quotient.median()
            near = (quotient - middle).abs() <= 1e-3 * middle.abs()
            if bool(near.all()) and bool((middle - 1).abs() > 1e-2):
                found.append(f"all of them are {float(middle):.4g} times the expected value")
    found += _region(wrong)
    return found


def _region(wrong: Tensor) -> list[str]:
    """Per dimension, whether the wrong elements keep to its end, its start or to every k-th index."""
    found = []
    for dim in range(wrong.dim()):
        size = wrong.shape[dim]
        other = [d for d in range(wrong.dim()) if d != dim]
        hit = wrong.any(dim=other) if other else wrong
        indices = hit.nonzero().flatten().tolist()
        if len(indices) in (0, size) or size < 2:
            continue
        low, high = indices[0], indices[-1]
        where = f"dimension {dim} of {size}"
        steps = {b - a for a, b in itertools.pairwise(indices)}
        if steps <= {1} and high == size - 1:
            found.append(f"all at index >= {low} in {where}")
        elif steps <= {1} and low == 0:
            found.append(f"all at index <= {high} in {where}")
        elif len(indices) > 2 and len(steps) == 1:
            found.append(f"all at indices {low}, {indices[1]}, ... (step {steps.pop()}) in {where}")
        else:
            found.append(f"in {len(indices)} of {size} indices of dimension {dim} ({low} to {high})")
    return found


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _number(item: Tensor) -> str:
    return f"{float(item):.7g}" if item.is_floating_point() else str(int(item))


def _percent(count: int, total: int) -> str:
    share = 100.0 * count / total
    return f"{share:.3g} %" if count < total else "100 %"
