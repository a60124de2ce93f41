"""What common harnesses do instead of this one's controls, for tests that show an exploit to be live.

No command reaches this: it takes a :class:`kb_env.gpu.controls.Controls` with a switch off, and only tests
construct one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kb_env.gpu.layout import ALIGN, GUARD
from kb_env.gpu.protocol import Region
from kb_env.numerics import Comparison, Expected

#: The absolute and relative tolerance of KernelBench, whatever the task.
TOLERANCE = 1e-2


def _places(arena: Tensor, regions: tuple[Region, ...]) -> dict[str, Tensor]:
    """The first place behind each output that a buffer of its size could have, as bytes."""
    found = {}
    for region in regions:
        start = -(-(region.offset + region.nbytes + GUARD) // ALIGN) * ALIGN
        if region.kind == "output" and start + region.nbytes <= len(arena):
            found[region.name] = arena[start : start + region.nbytes]
    return found


def expose(
    arena: Tensor, regions: tuple[Region, ...], expected: Expected, outputs: Mapping[str, Tensor]
) -> None:
    """Leave the expected outputs where the program can reach them, as a shared context would."""
    for name, place in _places(arena, regions).items():
        place.copy_(expected.values[name].to(outputs[name].dtype).contiguous().view(-1).view(torch.uint8))


def as_exposed(
    arena: Tensor, regions: tuple[Region, ...], expected: Expected, outputs: Mapping[str, Tensor]
) -> Expected:
    """The expected outputs as the program left them."""
    values = dict(expected.values)
    for name, place in _places(arena, regions).items():
        output = outputs[name]
        values[name] = place.clone().view(output.dtype).view(output.shape).to(values[name].dtype)
    return replace(expected, values=values)


def close_enough(expected: Expected, outputs: Mapping[str, Tensor]) -> Comparison:
    """One absolute and relative tolerance for every task."""
    for name, value in expected.values.items():
        output = outputs[name].to(value.dtype)
        if not torch.allclose(output, value, rtol=TOLERANCE, atol=TOLERANCE):
            return Comparison(False, "value", f"{name} is not close", 2.0)
    return Comparison(True, None, "", 0.0)
