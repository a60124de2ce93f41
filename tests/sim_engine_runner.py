"""Shared by the engine tests: compile a .cu to PTX once, launch a kernel on numpy arrays."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kb_env.plan import PLAN_SCHEMA, Buffer, Launch, LaunchPlan, Pointer
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.machine import Machine

KERNELS = Path(__file__).parent / "sim_kernels"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")


def compile_ptx(name: str, folder: Path) -> str:
    out = folder / f"{name}.ptx"
    command = ["nvcc", "-ptx", "-arch=sm_90a", "-lineinfo", str(KERNELS / f"{name}.cu"), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return out.read_text()


def launch(
    machine: Machine, kernel: str, arguments: list, grid: int | tuple = 1, block: int | tuple = 32, shared: int = 0,
    sample: int | None = None, budget: int = 50_000_000,
) -> LaunchCounts:  # fmt: skip
    """Launch with numpy arrays (buffers, changed in place), ints (32 bits), and bytes as arguments."""
    buffers, memory, parameters, pointers = [], [], [], []
    for position, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            pointers.append(Pointer(position, 0, len(buffers), 0))
            buffers.append(Buffer("argument", f"a{position}", value.nbytes))
            memory.append(value.reshape(-1).view(np.uint8))
            parameters.append(bytes(8))
        else:
            parameters.append(value if isinstance(value, bytes) else struct.pack("<i", value))

    def three(size: int | tuple) -> tuple:
        return (*size, 1, 1)[:3] if isinstance(size, tuple) else (size, 1, 1)

    operation = Launch(kernel, three(grid), three(block), shared, tuple(parameters), tuple(pointers))
    plan = LaunchPlan(PLAN_SCHEMA, "test", tuple(buffers), (operation,))
    return machine.run(plan, memory, sample_blocks=sample, budget=budget)[0]
