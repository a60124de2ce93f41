"""Arming and judging a run in few launches, by the oracle's own kernels (verdicts.cu) in torch's context.

A verdict from here is only ever that all is plainly well; anything else is looked at by the slow path of
oracle.py, which also finds the words for it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kb_env.numerics import Expected

_BLOCK = 256
#: Blocks a launch: enough to fill any GPU, few enough to start at once.
_BLOCKS = 2048
#: Doubles per output: largest, sum of squares, NaN seen, limit of the RMS.
_PER_OUTPUT = 4
_FLAGS = 2
_COMPARED = frozenset({"float32", "float16", "bfloat16"})


class Kernels:
    """The kernels, loaded into the current context, and the one buffer that verdicts come back in."""

    def __init__(self, device: str) -> None:
        from kb_env.gpu.driver import call, driver  # not there, and not needed, where there is no GPU

        self._call, self._driver = call, driver
        torch.zeros(1, device=device)  # makes torch's context current
        text = (Path(__file__).parent / "verdicts.ptx").read_bytes() + b"\0"
        self._module = call(driver.cuModuleLoadData, text)
        names = ("kb_fill", "kb_differs", "kb_unequal", *(f"kb_compare_{name}" for name in sorted(_COMPARED)))
        self._functions = {
            name: call(driver.cuModuleGetFunction, self._module, name.encode()) for name in names
        }
        self._device = device
        self._result = torch.zeros(64, dtype=torch.float64, device=device)

    def _launch(self, name: str, blocks: int, rows: int, values: Sequence[int], types: str) -> None:
        kinds: dict[str, Any] = {"Q": ctypes.c_uint64, "I": ctypes.c_uint32}
        cells = [kinds[kind](value) for kind, value in zip(types, values, strict=True)]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        stream = torch.cuda.current_stream().cuda_stream
        where = ctypes.addressof(pointers)
        self._call(
            self._driver.cuLaunchKernel,
            self._functions[name],
            blocks,
            rows,
            1,
            _BLOCK,
            1,
            1,
            0,
            stream,
            where,
            0,
        )

    def table(self, spans: Sequence[tuple[int, int]]) -> Tensor:
        """Addresses and sizes of stretches of memory, on the device; empty ones are left out."""
        return torch.tensor([span for span in spans if span[1]], dtype=torch.int64, device=self._device)

    def fill(self, table: Tensor, byte: int) -> None:
        if len(table):
            blocks = max(1, _BLOCKS // len(table))
            self._launch("kb_fill", blocks, len(table), (table.data_ptr(), byte), "QI")

    def all_well(
        self,
        guards: Tensor | None,
        guard: int,
        inputs: Sequence[tuple[Tensor, Tensor]],
        expected: Expected,
        outputs: Mapping[str, Tensor],
    ) -> float | None:
        """The largest error over its bound if everything is right, else None.

        Args:
            guards: table of the guard bands, whose bytes must all be ``guard``.
            inputs: pairs of byte tensors that must be the same.
        """
        result = self._result.zero_()
        at = result.data_ptr()
        if guards is not None and len(guards):
            blocks = max(1, _BLOCKS // len(guards))
            self._launch("kb_differs", blocks, len(guards), (guards.data_ptr(), guard, at), "QIQ")
        for one, two in inputs:
            self._unequal(one, two, at + 8)
        for number, (name, output) in enumerate(outputs.items()):
            self._judge(output, name, expected, result, _FLAGS + _PER_OUTPUT * number)
        found = result.tolist()
        if any(found[:_FLAGS]):
            return None
        worst = 0.0
        for number, output in enumerate(outputs.values()):
            largest, squares, bad, limit = found[_FLAGS + _PER_OUTPUT * number :][:_PER_OUTPUT]
            if bad or not largest <= 1.0 or not math.sqrt(squares / max(1, output.numel())) <= limit:
                return None
            worst = max(worst, largest)
        return worst

    def _judge(self, output: Tensor, name: str, expected: Expected, result: Tensor, slot: int) -> None:
        value = expected.values[name].contiguous()
        if name not in expected.bounds:  # integers are exact
            result[slot + 3] = 1.0
            self._unequal(_bytes(output), _bytes(value), result.data_ptr() + 8 * (slot + 2))
            return
        bound = expected.bounds[name].contiguous()
        result[slot + 3].copy_(expected.rms[name])
        kind = str(output.dtype).removeprefix("torch.")
        pointers = (output.data_ptr(), value.data_ptr(), bound.data_ptr(), output.numel())
        where = result.data_ptr() + 8 * slot
        self._launch(f"kb_compare_{kind}", _BLOCKS, 1, (*pointers, where), "QQQQQ")

    def _unequal(self, one: Tensor, two: Tensor, flag: int) -> None:
        pointers = (one.data_ptr(), two.data_ptr())
        self._launch("kb_unequal", _BLOCKS, 1, (*pointers, one.numel() * one.element_size(), flag), "QQQQ")


def can_judge(outputs: Mapping[str, Tensor], expected: Expected) -> bool:
    """Whether the kernels know these outputs' types and shapes, and there is room for their verdicts."""
    for name, output in outputs.items():
        value = expected.values[name]
        kind = str(output.dtype).removeprefix("torch.")
        known = kind in _COMPARED if name in expected.bounds else value.dtype == output.dtype
        if not known or value.shape != output.shape or not output.numel():
            return False
    return len(outputs) <= 15


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
