"""The tolerance: honest results pass, and nothing that is wrong anywhere does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.mismatch import describe, ratios
from kb_env.numerics import Comparison, Expected, Reference
from kb_env.orders import Arithmetic, round_to
from kb_env.task import load_task
from kb_env.types import Argument, Case, KbError, Task

CASE = Case("check0", {"rows": 7, "cols": 300})


def tiny(dtype: str, reference: str, accumulate: str = "float32", extra: str = "", out: str = "") -> Task:
    """A task of one input x of 1000 elements and one output y, from the body of its reference."""
    base = load_task("vector_add")
    text = f"""
import torch
def inputs(sizes, generator, device):
    return {{"x": torch.randn(sizes["n"], generator=generator, device=device).to(torch.{dtype})}}
def reference(inputs, sizes):
    x = inputs["x"]
    return {{"y": {reference}}}
{extra}
"""
    arguments = (Argument("x", "input", dtype, ("n",)), Argument("y", "output", out or dtype, ("n",)))
    return replace(base, arguments=arguments, reference=text, dtype=dtype, accumulate=accumulate)


N = Case("check0", {"n": 1000})


def verdict(task: Task, change: float | None, index: int = 0, seed: int = 3) -> Comparison:
    """Compare the exact result, rounded to the output's type, with one element replaced."""
    reference = Reference(task)
    expected = reference.expected(N, reference.inputs(N, seed, "cpu"))
    y = expected.values["y"].to(getattr(torch, task.arguments[1].dtype))
    if change is not None:
        y[index] = change
    return reference.compare(expected, {"y": y})


def test_inputs_are_declared_contiguous_and_follow_the_seed() -> None:
    reference = Reference(load_task("rmsnorm"))
    first, again, other = (reference.inputs(CASE, seed, "cpu") for seed in (5, 5, 6))
    assert first["x"].dtype == torch.float16 and first["x"].shape == (7, 300) and first["x"].is_contiguous()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["x"], other["x"])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), lanes=st.integers(1, 64), backwards=st.booleans())
def test_every_order_of_an_honest_sum_passes(seed: int, lanes: int, backwards: bool) -> None:
    reference = Reference(load_task("row_sum"))
    inputs = reference.inputs(CASE, seed, "cpu")
    with Arithmetic(lanes, backwards):
        y = inputs["x"].sum(dim=1)
    found = reference.compare(reference.expected(CASE, inputs), {"y": y})
    assert found.ok and found.fault is None and found.worst <= 1.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), power=st.integers(-60, 60))
def test_bounds_scale_with_the_data_so_no_scale_hides_an_error(seed: int, power: int) -> None:
    reference = Reference(load_task("row_sum"))
    inputs = {"x": torch.ldexp(reference.inputs(CASE, seed, "cpu")["x"], torch.tensor(power))}
    expected = reference.expected(CASE, inputs)
    exact = expected.values["y"].float()
    assert reference.compare(expected, {"y": exact}).ok
    assert not reference.compare(expected, {"y": torch.zeros_like(exact)}).ok
    coarse = {"y": round_to(exact, 11)}
    assert not reference.compare(expected, coarse).ok


@settings(max_examples=40, deadline=None)
@given(index=st.integers(0, 999), wrong=st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e30, -7.5]))
def test_one_wrong_element_anywhere_is_found(index: int, wrong: float) -> None:
    found = verdict(tiny("float32", "x * 3 + 100"), wrong, index)
    assert not found.ok
    assert found.fault == ("value" if math.isfinite(wrong) else "nan")
    assert f"y[{index}]" in found.message and "1 of 1000" in found.message


@settings(max_examples=30, deadline=None)
@given(index=st.integers(0, 999), off=st.sampled_from([-1, 1, 2**24]))
def test_integers_are_exact(index: int, off: int) -> None:
    task = replace(load_task("histogram"), reference=load_task("histogram").reference)
    reference, case = Reference(task), Case("check0", {"n": 5000, "bins": 1000})
    expected = reference.expected(case, reference.inputs(case, 1, "cpu"))
    counts = expected.values["counts"].clone()
    assert counts.dtype == torch.int32 and reference.compare(expected, {"counts": counts}).ok
    counts[index] += off
    found = reference.compare(expected, {"counts": counts})
    assert not found.ok and found.worst == math.inf and f"counts[{index}]" in found.message


def test_non_finite_masks_must_be_equal() -> None:
    task = tiny("float32", "torch.where(x > 1, torch.inf, torch.where(x < -1, torch.nan, x))")
    assert verdict(task, None).ok
    reference = Reference(task)
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    value = expected.values["y"]
    for mask, wrong in ((value == math.inf, 3.4e38), (value == math.inf, -math.inf), (value.isnan(), 0.0)):
        index = int(mask.nonzero()[0])
        assert not verdict(task, wrong, index).ok
    assert not verdict(task, math.nan, int(value.isfinite().nonzero()[0])).ok
    # An error among the finite ones is found although the others are not finite.
    assert not verdict(task, 17.0, int(value.isfinite().nonzero()[0])).ok


def test_zero_is_exactly_zero_and_underflow_is_allowed_only_where_the_type_cannot_tell() -> None:
    relu = tiny("float32", "x.clamp(min=0)", extra='def magnitude(i, s): return {"y": 0 * i["x"]}')
    reference = Reference(relu)
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    index = int((expected.values["y"] == 0).nonzero()[0])
    assert verdict(relu, None).ok
    assert not verdict(relu, 1e-30, index).ok
    assert verdict(tiny("float16", "x * 1e-10"), None).ok
    assert not verdict(tiny("float32", "x * 1e-10"), 0.0).ok


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 24), ("float16", 11), ("bfloat16", 8)])
def test_correct_rounding_of_the_output_passes_and_two_bits_fewer_do_not(dtype: str, digits: int) -> None:
    task = tiny(dtype, "x * 1.2345678", extra='def magnitude(i, s): return {"y": 0 * i["x"]}')
    reference = Reference(task)
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    exact = expected.values["y"]
    assert reference.compare(expected, {"y": exact.to(getattr(torch, dtype))}).ok
    coarse = round_to(exact, digits - 2).to(getattr(torch, dtype))
    assert not reference.compare(expected, {"y": coarse}).ok


def test_low_precision_below_the_maximum_shows_in_the_rms() -> None:
    reference = Reference(tiny("float32", "x"))
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    value, bound = expected.values["y"], expected.bounds["y"]
    found = reference.compare(expected, {"y": (value + 0.6 * bound).float()})
    assert not found.ok and found.fault == "precision" and found.worst < 1.0
    assert "RMS" in found.message and "float32" in found.message


def test_a_bad_baseline_widens_the_bound_by_four_at_most() -> None:
    plain = Reference(tiny("float32", "x.cumsum(0)"))
    half = Reference(
        tiny("float32", "x.cumsum(0)", extra='def eager(i, s): return {"y": i["x"].half().cumsum(0).float()}')
    )
    inputs = plain.inputs(N, 3, "cpu")
    narrow, wide = plain.expected(N, inputs).bounds["y"], half.expected(N, inputs).bounds["y"]
    assert bool((wide <= 4.0 * narrow * (1 + 1e-9)).all()) and bool((wide > narrow).all())
    expected = half.expected(N, inputs)
    assert not half.compare(expected, half.eager(inputs, N)).ok


def test_eager_is_full_float32_and_leaves_the_flags_as_they_were() -> None:
    text = (
        "def eager(i, s):\n"
        "    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32\n"
        "    if any(flags): raise RuntimeError('tf32 is on')\n"
        "    return {'y': i['x']}"
    )
    reference = Reference(tiny("float32", "x", extra=text))
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        reference.eager(reference.inputs(N, 1, "cpu"), N)
        assert torch.backends.cudnn.allow_tf32 is True
    finally:
        torch.backends.cudnn.allow_tf32 = before
    with pytest.raises(KbError, match="has no eager"):
        Reference(tiny("float32", "x")).eager({}, N)


def test_an_inout_argument_is_an_input_and_is_checked() -> None:
    task = tiny("float32", "x")
    text = task.reference.replace('return {"y": x}', 'return {"x": x + 1}')
    task = replace(task, arguments=(Argument("x", "inout", "float32", ("n",)),), reference=text)
    reference = Reference(task)
    inputs = reference.inputs(N, 3, "cpu")
    expected = reference.expected(N, inputs)
    assert reference.compare(expected, {"x": inputs["x"] + 1}).ok
    assert not reference.compare(expected, {"x": inputs["x"]}).ok


@pytest.mark.parametrize(
    ("reference", "extra", "named"),
    [
        ("x[:5]", "", r"gave y shape \(5,\), not \(1000,\)"),
        ("x.int()", "", "gave y as torch.int32, not float32"),
        ('x, "z": x', "", r"returned \['y', 'z'\]"),
        ("x", "def inputs(s, g, d): return torch.ones(3)", "inputs.. in reference.py returned Tensor"),
    ],
)
def test_a_reference_that_breaks_its_contract_is_named(reference: str, extra: str, named: str) -> None:
    subject = Reference(tiny("float32", reference, extra=extra))
    with pytest.raises(KbError, match=named):
        subject.expected(N, subject.inputs(N, 1, "cpu"))


def test_outputs_of_another_type_or_shape_are_refused() -> None:
    reference = Reference(tiny("float32", "x"))
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    for output in ({}, {"y": torch.zeros(1000).double()}, {"y": torch.zeros(1, 1000)}):
        with pytest.raises(KbError, match="output 'y' is"):
            reference.compare(expected, output)


def test_two_outputs_are_both_compared() -> None:
    task = tiny("float32", 'x, "z": (x > 0).to(torch.int64)')
    task = replace(task, arguments=(*task.arguments, Argument("z", "output", "int8", ("n",))))
    reference = Reference(task)
    expected = reference.expected(N, reference.inputs(N, 3, "cpu"))
    assert isinstance(expected, Expected) and expected.values["z"].dtype == torch.int8
    good = {"y": expected.values["y"].float(), "z": expected.values["z"].clone()}
    assert reference.compare(expected, good).ok
    good["z"][17] ^= 1
    assert not reference.compare(expected, good).ok


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda y: y[5:].zero_(), "all of them are 0"),
        (lambda y: y[5:].zero_(), "all at index >= 5 in dimension 0 of 8"),
        (lambda y: y[:3].mul_(2), "all of them are 2 times the expected value"),
        (lambda y: y[:3].mul_(2), "all at index <= 2 in dimension 0 of 8"),
        (lambda y: y[:, 1::3].mul_(2), "all at indices 1, 4, ... (step 3) in dimension 1 of 9"),
        (lambda y: y[2:4, 3].fill_(math.nan), "2 of them are NaN or infinite"),
        (lambda y: y.add_(1), "72 of 72 elements of y (100 %)"),
    ],
)
def test_the_message_names_the_pattern(spoil: object, named: str) -> None:
    value = torch.arange(1.0, 73.0).view(8, 9).double()
    output = value.float()
    spoil(output)  # type: ignore[operator]
    bound = torch.full_like(value, 1e-6)
    assert named in describe("y", output, value, bound, ratios(output, value, bound))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-60000, 60000, width=32), min_size=1, max_size=20))
def test_round_to_is_round_to_nearest_even(numbers: list[float]) -> None:
    x = torch.tensor([v for v in numbers if abs(v) > 1e-4] or [1.0])
    assert torch.equal(round_to(x, 11), x.half().float())
    assert torch.equal(round_to(x, 8), x.bfloat16().float())


@pytest.mark.parametrize("backwards", [False, True])
def test_the_rules_compute_what_torch_does(backwards: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 70, generator=g).double()
    formulas = (
        x.sum,
        lambda: x.sum(dim=(0, 2), keepdim=True),
        x.mean,
        lambda: x.mean(dim=1),
        lambda: x[0] @ x[1].t(),
        lambda: torch.bmm(x, x.transpose(1, 2)),
        lambda: x.cumsum(1),
        lambda: x.cumsum(2),
        lambda: torch.softmax(x, 1),
        lambda: torch.logsumexp(x, dim=2),
        lambda: torch.nn.functional.layer_norm(x, (70,), x[0, 0], x[0, 1]),
        (x > 0).sum,
    )
    for formula in formulas:
        plain = formula()
        with Arithmetic(5, backwards):
            ordered = formula()
        torch.testing.assert_close(ordered, plain, rtol=1e-12, atol=1e-12)


def test_orders_differ_in_the_last_bits_and_digits_in_many() -> None:
    x = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0)) + 1
    sums = []
    for mode in (Arithmetic(), Arithmetic(7, True), Arithmetic(digits=11)):
        with mode:
            sums.append(x.sum(dim=1))
    exact = x.double().sum(dim=1)
    errors = [float(((y - exact) / exact).abs().mean()) for y in sums]
    assert not torch.equal(sums[0], sums[1])
    assert 0 < errors[0] < 1e-6 and 0 < errors[1] < 1e-6 and errors[2] > 1e-4


def test_errors_that_all_elements_share_count_once() -> None:
    """An error of all elements alike, within each one's bound: too much if independent, a scan's bad luck if not."""
    inputs = {"x": torch.linspace(1.0, 2.0, 1000)}
    for extra, ok in (("", False), ("def independent(sizes): return 1", True)):
        reference = Reference(tiny("float32", "2.0 * x", extra=extra))
        expected = reference.expected(N, inputs)
        output = (expected.values["y"] + 0.8 * expected.bounds["y"]).float()
        verdict = reference.compare(expected, {"y": output})
        assert verdict.ok is ok, verdict.message
        assert verdict.fault == (None if ok else "precision")
        output[7] += 4.0 * expected.bounds["y"][7].float()
        assert reference.compare(expected, {"y": output}).fault == "value"
