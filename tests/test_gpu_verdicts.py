"""The oracle's kernels, run on the simulator: they must see every byte and every kind of wrong number."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import kb_env.gpu.verdicts as verdicts
from kb_env.numerics import Expected
from kb_env.plan import PLAN_SCHEMA, Buffer, Launch, LaunchPlan, Pointer
from kb_env.sim.compiled import FIRST_SLOT
from kb_env.sim.lower import SLOT_SHIFT
from kb_env.sim.machine import Machine

PTX = (Path(verdicts.__file__).parent / "verdicts.ptx").read_text()
#: Where the simulator puts the first buffer of a plan.
BASE = FIRST_SLOT << SLOT_SHIFT


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(PTX)


def run(
    machine: Machine, kernel: str, memory: list[np.ndarray], arguments: list[object], rows: int = 1
) -> None:
    """Launch with ``memory`` as the plan's buffers; arguments are ("at", buffer, offset), ints or packed bytes."""
    buffers = tuple(Buffer("argument", f"m{i}", data.nbytes) for i, data in enumerate(memory))
    parameters, pointers = [], []
    for position, value in enumerate(arguments):
        if isinstance(value, tuple):
            pointers.append(Pointer(position, 0, value[1], value[2]))
            parameters.append(bytes(8))
        else:
            parameters.append(value if isinstance(value, bytes) else struct.pack("<I", value))
    launch = Launch(kernel, (3, rows, 1), (256, 1, 1), 0, tuple(parameters), tuple(pointers))
    machine.run(LaunchPlan(PLAN_SCHEMA, "t", buffers, (launch,)), [m.view(np.uint8) for m in memory])


SPANS = [(3, 4000), (4096, 16), (4200, 5), (5000, 1), (6001, 15)]


def table() -> np.ndarray:
    return np.array([(BASE + start, size) for start, size in SPANS], dtype=np.int64).reshape(-1)


def test_fill_reaches_every_byte_of_its_spans_and_no_other(machine: Machine) -> None:
    memory = np.full(8192, 7, np.uint8)
    run(machine, "kb_fill", [memory, table()], [("at", 1, 0), 0xA5], rows=len(SPANS))
    wanted = np.full(8192, 7, np.uint8)
    for start, size in SPANS:
        wanted[start : start + size] = 0xA5
    assert (memory == wanted).all()


def test_differs_sees_each_byte(machine: Machine) -> None:
    memory = np.full(8192, 0xA5, np.uint8)
    spots = [place for start, size in SPANS for place in {start, start + size // 2, start + size - 1}]
    outside = [2, 4003, 4095, 4112, 4205, 5001, 6016]
    for spot, wanted in [(None, 0.0), *((s, 1.0) for s in spots), *((s, 0.0) for s in outside)]:
        flag = np.zeros(1)
        if spot is not None:
            memory[spot] = 0xA4
        run(machine, "kb_differs", [memory, table(), flag], [("at", 1, 0), 0xA5, ("at", 2, 0)], len(SPANS))
        assert flag[0] == wanted, spot
        memory[:] = 0xA5


@pytest.mark.parametrize("size", [1, 15, 16, 5000])
def test_unequal_sees_each_byte(machine: Machine, size: int) -> None:
    one = np.random.default_rng(0).integers(0, 256, 8192, dtype=np.uint8)
    for spot, wanted in [(None, 0.0), (0, 1.0), (size // 2, 1.0), (size - 1, 1.0), (size, 0.0)]:
        two, flag = one.copy(), np.zeros(1)
        if spot is not None:
            two[spot] ^= 16
        arguments: list[object] = [("at", 0, 0), ("at", 1, 0), struct.pack("<Q", size), ("at", 2, 0)]
        run(machine, "kb_unequal", [one, two, flag], arguments)
        assert flag[0] == wanted, (size, spot)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_compare_is_what_the_slow_path_computes(machine: Machine, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(1500, generator=generator).to(getattr(torch, kind))
    value = output.double() + 0.01 * torch.randn(1500, generator=generator).double()
    bound = 0.05 + torch.rand(1500, generator=generator).double()

    def found() -> tuple[float, float, float]:
        result = np.zeros(3)
        raw = output.view(torch.int16 if output.element_size() == 2 else torch.int32).numpy()
        memory = [raw, value.numpy(), bound.numpy(), result]
        arguments: list[object] = [
            ("at", 0, 0),
            ("at", 1, 0),
            ("at", 2, 0),
            struct.pack("<Q", 1500),
            ("at", 3, 0),
        ]
        run(machine, f"kb_compare_{kind}", memory, arguments)
        return tuple(result)  # type: ignore[return-value]

    ratio = (value - output.double()) / bound
    largest, squares, bad = found()
    assert (largest, bad) == (float(ratio.abs().max()), 0.0)
    assert squares == pytest.approx(float((ratio**2).sum()), rel=1e-12)
    output[1499] = math.inf
    assert found()[0] == math.inf
    output[1499] = math.nan
    assert found()[2] == 1.0
    output[1499], value[7] = 0.0, math.inf
    assert not found()[0] <= 1.0


def test_only_known_types_and_shapes_are_judged_quickly() -> None:
    ones = {"y": torch.ones(4)}
    expected = Expected({"y": torch.ones(4).double()}, {"y": torch.ones(4).double()}, {"y": torch.ones(())})
    assert verdicts.can_judge(ones, expected)
    assert not verdicts.can_judge({"y": torch.ones(5)}, expected)
    assert not verdicts.can_judge({"y": torch.ones(4).double()}, expected)
    assert not verdicts.can_judge(
        {"y": torch.ones(0)}, Expected({"y": torch.ones(0)}, {"y": torch.ones(0)}, {})
    )
    counts = Expected({"y": torch.ones(4, dtype=torch.int32)}, {}, {})
    assert verdicts.can_judge({"y": torch.ones(4, dtype=torch.int32)}, counts)
    assert not verdicts.can_judge({"y": torch.ones(4, dtype=torch.int64)}, counts)
