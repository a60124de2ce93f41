"""The PTX engine: control flow, arithmetic, warp primitives, atomics and faults, against numpy and torch."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sim_engine_runner import compile_ptx, launch, needs_nvcc

from kb_env.sim.coverage import coverage_table
from kb_env.sim.machine import Machine, SimFault, pick_blocks
from kb_env.types import Status

pytestmark = needs_nvcc


@pytest.fixture(scope="module")
def ptx(store: Path) -> str:
    return compile_ptx("basic", store)


@pytest.fixture
def machine(ptx: str) -> Machine:
    return Machine(ptx)


def collatz(n: int) -> int:
    steps = 0
    while n != 1 and steps < 1000:
        n = 3 * n + 1 if n & 1 else n // 2
        steps += 1
    return steps


def diverge(i: int) -> int:
    if i % 3:
        return -collatz(i + 1)
    total = 0
    for k in range(i % 17):
        if k % 5 == 4:
            continue
        total += collatz(i + k + 1)
        if total > 300:
            break
    return total


def test_divergence(machine: Machine) -> None:
    out = np.full(256, -99, np.int32)
    counts = launch(machine, "diverge", [out, 200], grid=2, block=128)
    assert out[:200].tolist() == [diverge(i) for i in range(200)]
    assert (out[200:] == -99).all()
    assert counts.divergent_branches > 0
    assert counts.active_lanes < 32 * sum(counts.warp_instructions.values())


def test_switch_and_counters(machine: Machine) -> None:
    out = np.zeros(64, np.int32)
    launch(machine, "choose", [out, 3], block=64)
    cases = [
        lambda i: i * i,
        lambda i: i + 100,
        lambda i: ~i,
        lambda i: i << 3,
        lambda i: i // 3,
        lambda i: i ^ 0x55,
        lambda i: -i,
    ]
    assert out.tolist() == [cases[i % 7](i) + 3 for i in range(64)]
    launch(machine, "counters", [out, 40], block=64)
    assert out.tolist() == [min(i, 39) for i in range(64)]


def test_barriers_in_a_loop(machine: Machine) -> None:
    x, y = np.random.default_rng(0).integers(0, 100, 256).astype(np.int32), np.zeros(256, np.int32)
    counts = launch(machine, "scan", [x, y, 256], block=256, shared=1024)
    assert (y == np.cumsum(x)).all()
    assert counts.shared_bytes == 1024
    assert counts.barriers == 8 * 2 * 8  # warps, barriers a step, steps


def test_warp_primitives(machine: Machine) -> None:
    v = np.random.default_rng(1).integers(0, 900, 32).astype(np.int32)
    v[3] = 7
    out = np.zeros(320, np.int32)
    launch(machine, "warp_ops", [v, out])
    i = np.arange(32)
    part = out.reshape(10, 32)
    assert (part[0] == v[i ^ 5]).all()
    assert (part[1] == np.where(i % 8 >= 3, v[i - 3], v)).all()
    assert (part[2] == np.where(i + 2 < 32, v[np.minimum(i + 2, 31)], v)).all()
    assert (part[3] == v[(i & 16) + (i // 4) % 16]).all()
    assert (part[4].view(np.uint32) == sum(1 << int(k) for k in i if v[k] & 1)).all()
    assert (part[5] == 1 + 2).all()
    match = [sum(1 << k for k in range(32) if v[k] & 3 == v[j] & 3) for j in range(32)]
    assert part[6].view(np.uint32).tolist() == match
    assert (part[7] == v.sum() + v.max()).all()
    assert (part[8].view(np.uint32)[1::2] == 0xAAAAAAAA).all()
    assert (part[9] == (v & 1).sum() + 256 + 512).all()


def test_atomics(machine: Machine) -> None:
    x = np.random.default_rng(2).integers(0, 1 << 20, 1000).astype(np.int32)
    hist, total, other = np.zeros(16, np.int32), np.zeros(1, np.float32), np.zeros(8, np.int32)
    other[1], other[4] = 1 << 30, -1
    counts = launch(machine, "atomics", [x, hist, total, other, 1000], grid=4, block=256)
    assert (hist == np.bincount(x & 15, minlength=16)).all()
    assert total[0] == 500
    assert other[0] == x.max() and other[1] == x.min()
    assert other[2] == np.bitwise_or.reduce(x) and other[3] == np.bitwise_xor.reduce(x)
    assert other[4] == np.bitwise_and.reduce(x | 0x40000000)
    assert other[5] == x.sum()
    assert other[6:].view(np.int64)[0] == x.sum()
    assert counts.atomic_requests > 0 and counts.atomic_conflicts > 9 * 900


def test_integers(machine: Machine) -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-(1 << 31), 1 << 31, 300).astype(np.int32)
    b = np.where(
        rng.random(300) < 0.5, rng.integers(-40, 40, 300), rng.integers(-(1 << 31), 1 << 31, 300)
    ).astype(np.int32)
    b[:3] = (0, -1, 1)
    out = np.zeros((300, 20), np.int64)
    launch(machine, "integers", [a, b, out, 300], grid=3, block=128)
    for x, y, o in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        assert o == integers(x, y), (x, y)


def integers(x: int, y: int) -> list[int]:
    def s(value: int, bits: int = 64) -> int:
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value

    def quotient(p: int, q: int) -> int:
        return abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)

    ux, uy, m = x & 0xFFFFFFFF, y & 0xFFFFFFFF, 0xFFFFFFFF
    d, ud = y or 1, uy or 1
    lx, ly = s((x << 21) ^ y), y | 1
    pair = uy << 32 | ux
    pool = [*ux.to_bytes(4, "little"), *uy.to_bytes(4, "little")]
    shift = uy & 63
    dot = sum(
        s(p, 8) * s(q, 8) for p, q in zip(ux.to_bytes(4, "little"), uy.to_bytes(4, "little"), strict=True)
    )
    leading = 32 - ux.bit_length()
    return [
        s(quotient(x, d), 32), s(x - quotient(x, d) * d, 32), ux // ud, ux % ud,
        s(quotient(lx, ly)), lx - quotient(lx, ly) * ly, (x * y) >> 32, (ux * uy) >> 32, (lx * ly) >> 64,
        ux.bit_count() * 100 + leading, int(f"{ux:032b}"[::-1], 2), (pair << (uy & 31)) >> 32 & m,
        int.from_bytes(bytes([pool[1], pool[4], pool[5], pool[2]]), "little"),
        ((ux & -ux).bit_length()) + 1000 * (64 - (lx & (1 << 64) - 1).bit_length()),
        x >> (y & 31), ux >> shift, s(dot + 7, 32), (abs(ux - uy) + 3) & m,
        min(x, y) * 2 + max(ux, uy), s((lx & (1 << 64) - 1) * (ly & (1 << 64) - 1) >> 64),
    ]  # fmt: skip


def test_floats(machine: Machine) -> None:
    rng = np.random.default_rng(4)
    a = (rng.standard_normal(256) * 3).astype(np.float32)
    b = (rng.standard_normal(256) * np.exp(rng.standard_normal(256) * 5)).astype(np.float32)
    out = np.zeros((256, 24), np.float32)
    launch(machine, "floats", [a, b, out, 256], block=256)
    x, y = a.astype(np.float64), b.astype(np.float64)
    magnitude = np.abs(x)
    exact = {0: x / y, 1: np.sqrt(magnitude), 2: x * y + x}
    for k, value in exact.items():
        assert (out[:, k] == value.astype(np.float32)).all(), k
    for k, mode in {3: "z", 4: "d", 5: "u"}.items():
        assert out[:, k].tolist() == [
            directed(Fraction(p) + Fraction(q), mode) for p, q in zip(x, y, strict=True)
        ]
    assert out[:, 6].tolist() == [directed(Fraction(p) * Fraction(q), "z") for p, q in zip(x, y, strict=True)]
    assert out[:, 7].tolist() == [
        directed(Fraction(p) * Fraction(q) + Fraction(p), "d") for p, q in zip(x, y, strict=True)
    ]
    assert (out[:, 16] == np.floor(a) + np.ceil(b)).all()
    assert (out[:, 17] == np.rint(a) + np.trunc(b)).all()
    assert (out[:, 19] == (x * y).astype(np.float32)).all()
    assert (out[:, 20] == np.minimum(a, b) + np.maximum(a, b)).all()
    assert (out[:, 21] == np.copysign(a, b)).all()
    assert out[:, 23].tolist() == [directed(Fraction(p / 3.0), "z") for p in x]
    close = {
        8: np.exp(x), 9: np.log(magnitude), 11: np.cos(x), 12: np.tanh(x), 13: magnitude**1.7, 14: magnitude**-0.5,
        22: magnitude**2.5,
    }  # fmt: skip
    for k, value in close.items():
        np.testing.assert_allclose(out[:, k], value, rtol=3e-6, atol=2e-7, err_msg=str(k))
    np.testing.assert_allclose(out[:, 10], np.sin((a * np.float32(1000)).astype(np.float64)), atol=3e-7)
    np.testing.assert_allclose(out[:, 15], torch.erf(torch.tensor(x)).numpy(), rtol=1e-6, atol=1e-7)


def directed(value: Fraction, mode: str) -> float:
    """The float32 next to an exact value in a rounding direction."""
    nearest = np.float32(float(value))
    down = mode == "d" or (mode == "z" and value > 0)
    if down and Fraction(float(nearest)) > value:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    if not down and Fraction(float(nearest)) < value:
        nearest = np.nextafter(nearest, np.float32(np.inf))
    return float(nearest)


def nearest_half(value: Fraction) -> np.float16:
    """float16 nearest to an exact value, ties to even."""
    guess = np.float16(float(value))
    if not np.isfinite(guess):
        return guess
    around = [guess, np.nextafter(guess, np.float16(np.inf)), np.nextafter(guess, np.float16(-np.inf))]
    finite = [item for item in around if np.isfinite(item)]
    return min(finite, key=lambda item: (abs(Fraction(float(item)) - value), int(item.view(np.uint16)) & 1))


def test_halves_round_once(machine: Machine) -> None:
    rng = np.random.default_rng(5)
    n = 4096
    a, b, c = (
        rng.integers(0, 0x7C00, n).astype(np.uint16) | (rng.integers(0, 2, n) << 15).astype(np.uint16)
        for _ in range(3)
    )
    a[: n // 2] = (rng.standard_normal(n // 2)).astype(np.float16).view(np.uint16)
    b[: n // 2] = (rng.standard_normal(n // 2)).astype(np.float16).view(np.uint16)
    c[: n // 2] = (rng.standard_normal(n // 2) * 1e-3).astype(np.float16).view(np.uint16)
    out = np.zeros((6, n), np.uint16)
    launch(machine, "halves", [a, b, c, out, n], grid=n // 256, block=256)
    x, y, z = (item.view(np.float16) for item in (a, b, c))
    with np.errstate(over="ignore"):
        expected = [
            x + y,
            x * y,
            None,
            x - z,
            (x.astype(np.float32) * 3).astype(np.float16),
            np.maximum(x, y),
        ]
    for k, value in enumerate(expected):
        if value is not None:
            assert (out[k].view(np.float16) == value).all(), k
    for i in range(0, n, 5):
        exact = Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i]))
        if abs(exact) < 65520:
            assert out[2].view(np.float16)[i] == nearest_half(exact), i


def test_bfloat16(machine: Machine) -> None:
    torch.manual_seed(0)
    a, b, c = (torch.randn(1024).to(torch.bfloat16) for _ in range(3))
    out = np.zeros((4, 1024), np.int16)
    raw = [item.view(torch.int16).numpy().copy() for item in (a, b, c)]
    launch(machine, "brains", [*raw, out, 1024], grid=4, block=256)
    product = (a.double() * b.double() + c.double()).to(torch.bfloat16)
    expected = [a + b, a * b, product, (a.float() * np.float32(1.7)).to(torch.bfloat16)]
    for k, value in enumerate(expected):
        assert (out[k] == value.view(torch.int16).numpy()).all(), k


@pytest.mark.parametrize(
    ("kernel", "width", "sectors"), [("copy1", 1, 4), ("copy2", 2, 8), ("copy32", 32, 32), ("copy4", 4, 16)]
)
def test_sectors_are_exact(machine: Machine, kernel: str, width: int, sectors: int) -> None:
    x, y = np.arange(4096, dtype=np.float32), np.zeros(256, np.float32)
    counts = launch(machine, kernel, [x, y])
    assert (counts.global_load_requests, counts.global_load_sectors) == (1, sectors)
    assert counts.global_load_bytes == 32 * (16 if kernel == "copy4" else 4)
    assert counts.footprint[0] == (sectors, 0)
    assert counts.footprint[1] == (0, counts.global_store_sectors)
    expected = x[:128] if kernel == "copy4" else x[: 32 * width : width]
    assert (y[: len(expected)] == expected).all()


def test_half_warp_pattern(machine: Machine) -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(64, np.float32)
    counts = launch(machine, "half_warps", [x, y], block=64)
    i = np.arange(64)
    assert (y == x[i % 16] + x[64 + i // 16]).all()
    assert counts.global_load_sectors == 2 * (2 + 1)
    assert counts.footprint[0] == (3, 0)


@pytest.mark.parametrize(("stride", "ways"), [(1, 1), (2, 2), (32, 32), (33, 1), (0, 1), (16, 16)])
def test_bank_conflicts_are_exact(machine: Machine, stride: int, ways: int) -> None:
    y = np.zeros(32, np.float32)
    counts = launch(machine, "banks", [y, stride])
    assert counts.shared_load_requests == 1
    assert counts.shared_load_wavefronts == ways
    assert counts.shared_store_wavefronts == counts.shared_store_requests == 33
    assert (y == np.arange(32) * stride).all()


def test_out_of_bounds_is_named(machine: Machine) -> None:
    y = np.zeros(32, np.float32)
    with pytest.raises(SimFault) as caught:
        launch(machine, "outside", [y, 1])
    assert caught.value.status is Status.CRASHED
    for part in ("out of bounds", "4 bytes at offset 128 of buffer a0", "outside", "thread 31", "line "):
        assert part in caught.value.message
    with pytest.raises(SimFault, match="offset -4 of buffer a0"):
        launch(machine, "outside", [y, -1])
    with pytest.raises(SimFault, match="shared memory"):
        launch(machine, "shared_outside", [y, 64])


@pytest.mark.parametrize(
    "address", [0, 1, 0x7FFF12345678, (1 << 64) - 4, 1 << 36, 5 << 36, 16 << 36, (4095 << 36) + 8, 3 << 36]
)
def test_hostile_pointers_reach_nothing(machine: Machine, address: int) -> None:
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    if address == 3 << 36:  # the kernel's own parameters may be read
        launch(machine, "read_at", [x, y, struct.pack("<Q", address)])
        return
    if address == 16 << 36:  # the module's own constants too
        return
    with pytest.raises(SimFault, match=r"out of bounds|misaligned"):
        launch(machine, "read_at", [x, y, struct.pack("<Q", address)])


def test_misaligned_vector(machine: Machine) -> None:
    with pytest.raises(SimFault, match="misaligned access: 16 bytes at offset 4 of buffer a0"):
        launch(machine, "misaligned", [np.zeros(64, np.float32), np.zeros(128, np.float32)])


def test_hang_ends_by_budget(machine: Machine) -> None:
    with pytest.raises(SimFault, match="budget") as caught:
        launch(machine, "forever", [np.zeros(1, np.int32)], budget=1_000_000)
    assert caught.value.status is Status.TIMED_OUT


def test_barrier_errors(machine: Machine) -> None:
    y = np.zeros(96, np.int32)
    launch(machine, "half_barrier", [y])
    assert [item.thread for item in machine.findings if "barrier" in item.message] == [0]
    with pytest.raises(SimFault, match="deadlock"):
        launch(machine, "stuck", [y], block=96)


def test_blocks_may_wait_for_each_other(machine: Machine) -> None:
    y = np.zeros(64, np.int32)
    launch(machine, "hand_over", [np.zeros(1, np.int32), y], grid=2, block=64, budget=500_000_000)
    assert (y == 7).all()


def test_printf_assert_and_symbols(machine: Machine) -> None:
    y = np.arange(32, dtype=np.float32)
    launch(machine, "speak", [y, 3])
    assert machine.text.splitlines()[0].startswith("lane 0 has 0.00 of ")
    assert machine.text.splitlines()[1].startswith("lane 1 has 1.00 of ")
    assert (y == np.arange(32) % 4 + 1).all()
    with pytest.raises(SimFault, match="assertion failed"):
        launch(machine, "speak", [y, 100])


def test_local_memory(machine: Machine) -> None:
    y = np.zeros(64, np.int32)
    counts = launch(machine, "depot", [y, 9], block=64)
    assert y.tolist() == [sum(i * ((i + k) & 15) for k in range(9)) for i in range(64)]
    assert counts.local_requests > 0


def test_unknown_opcode_is_refused_with_its_line(ptx: str) -> None:
    broken = ptx.replace("shfl.sync.bfly", "shfl.sync.twist", 1)
    assert broken != ptx
    with pytest.raises(SimFault, match=r"PTX line \d+: shfl") as caught:
        launch(Machine(broken), "warp_ops", [np.zeros(32, np.int32), np.zeros(320, np.int32)])
    assert caught.value.status is Status.REFUSED
    invented = ptx.replace("shfl.sync.bfly", "frobnicate.sync.bfly", 1)
    with pytest.raises(SimFault, match="frobnicate"):
        launch(Machine(invented), "warp_ops", [np.zeros(32, np.int32), np.zeros(320, np.int32)])


def test_sampling_is_additive(machine: Machine) -> None:
    out = np.zeros(64 * 32, np.float32)
    whole = launch(machine, "copy1", [np.zeros(32, np.float32), out], grid=64)
    some = launch(machine, "copy1", [np.zeros(32, np.float32), out], grid=64, sample=8)
    assert (some.blocks_run, some.blocks_total) == (8, 64)
    assert some.global_load_sectors * 8 == whole.global_load_sectors
    picks = pick_blocks(1000, 16)
    assert len(set(picks)) == 16 and max(b - a for a, b in pairwise(picks)) < 150
    assert pick_blocks(3, 10) == [0, 1, 2]


def test_two_runs_agree_to_the_bit(ptx: str) -> None:
    results = []
    for _ in range(2):
        a = np.linspace(-3, 3, 256, dtype=np.float32)
        out = np.zeros((256, 24), np.float32)
        counts = launch(Machine(ptx), "floats", [a, a[::-1].copy(), out, 256], block=256)
        results.append((out.tobytes(), counts))
    assert results[0] == results[1]


def test_coverage_page_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "sim_coverage.md"
    assert page.read_text() == coverage_table(), "run: python -m kb_env.sim.coverage docs/sim_coverage.md"
