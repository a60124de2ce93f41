"""The PTX engine's tensor cores and asynchronous copies, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sim_engine_runner import compile_ptx, launch, needs_nvcc

from kb_env.sim.machine import Machine

pytestmark = needs_nvcc


@pytest.fixture(scope="module")
def machine(store: Path) -> Machine:
    return Machine(compile_ptx("matrix", store))


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def test_wmma(machine: Machine) -> None:
    rng = np.random.default_rng(0)
    a, b, c = halves(rng, 16, 16), halves(rng, 16, 16), np.zeros((16, 16), np.float32)
    counts = launch(machine, "wmma_half", [a, b, c])
    np.testing.assert_allclose(c, 2 * (a.astype(float) @ b.T.astype(float) + 1), rtol=1e-6, atol=1e-6)
    assert counts.tensor_macs == 16**3


def test_mma_with_ldmatrix(machine: Machine) -> None:
    rng = np.random.default_rng(1)
    a, b, c = halves(rng, 16, 16), halves(rng, 16, 8), np.zeros((16, 8), np.float32)
    counts = launch(machine, "mma_half", [a, b, c])
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-6, atol=1e-6)
    assert counts.tensor_macs == 16 * 8 * 16
    assert counts.warp_instructions["tensor"] == 1


def test_mma_of_bytes(machine: Machine) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-128, 128, (16, 32)).astype(np.int8), rng.integers(-128, 128, (8, 32)).astype(np.int8)
    c = np.zeros((16, 8), np.int32)
    launch(machine, "mma_bytes", [a, b, c])
    assert (c == a.astype(np.int32) @ b.T.astype(np.int32) + 1).all()


def test_copies_arrive_at_the_wait(machine: Machine) -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    counts = launch(machine, "async_copy", [x, y, 1], block=128)
    assert (y == x[::-1]).all()
    assert counts.global_load_sectors == 16
    launch(machine, "async_copy", [x, y, 0], block=128)
    assert (y == -1).all()  # a missing wait reads what was there before


def test_bulk_copy_with_mbarrier(machine: Machine) -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    launch(machine, "bulk", [x, y], block=128)
    assert (y == 2 * x).all()
