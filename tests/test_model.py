"""The time model: sanity properties, the first H200 comparison, devices and floors."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textbook import TABLE, counts

from experiments.bench_sim import Row, figures, read_measured
from kb_env.devices import DEVICES, device, floor_us, occupancy, resident_blocks
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.model import Modelled, model_plan, ratio_spread
from kb_env.sim.network import response
from kb_env.sim.profile import CaseResult, profile
from kb_env.sim.traffic import L2_DIRTY
from kb_env.task import load_task
from kb_env.types import Case, KbError

H200 = DEVICES["H200"]
BY_NAME = {name: (measured, item) for name, measured, item in TABLE}


def modelled(item: LaunchCounts, name: str = "H200", registers: int = 32) -> Modelled:
    return model_plan(DEVICES[name], [item], {"k": registers}, {})


def streaming(blocks: int = 4096, **fields: object) -> LaunchCounts:
    """A copy of one float a thread."""
    requests = blocks * 8
    base: dict[str, object] = {
        "global_load_requests": requests, "global_load_sectors": 4 * requests, "global_load_bytes": 128 * requests,
        "global_store_requests": requests, "global_store_sectors": 4 * requests,
        "global_store_bytes": 128 * requests, "footprint": {0: (4 * requests, 0), 1: (0, 4 * requests)},
    }  # fmt: skip
    base.update(fields)
    return counts(blocks, 256, {"global_load": 1, "global_store": 1, "int": 6, "control": 2}, **base)


# -- the network ---------------------------------------------------------------------------------

demands = st.lists(st.just(0.0) | st.floats(1e-6, 1e4), min_size=1, max_size=8)


@settings(deadline=None)
@given(demands, st.just(0.0) | st.floats(1e-6, 1e5), st.integers(1, 64))
def test_response_keeps_the_bounds_of_operational_analysis(work, delay, customers):
    time = response(work, delay, customers)
    lower = max(customers * max(work), sum(work) + delay)
    upper = customers * sum(work) + delay
    assert lower * (1 - 1e-9) <= time <= upper * (1 + 1e-9) + 1e-12


@settings(deadline=None)
@given(demands, st.just(0.0) | st.floats(1e-6, 1e5), st.integers(1, 64), st.floats(1.0, 4.0), st.data())
def test_more_work_at_any_queue_is_never_faster(work, delay, customers, factor, data):
    index = data.draw(st.integers(0, len(work) - 1))
    more = [w * factor if i == index else w for i, w in enumerate(work)]
    assert response(more, delay, customers) >= response(work, delay, customers) * (1 - 1e-9)


def test_one_warp_alone_takes_the_sum_and_many_take_the_bottleneck():
    assert response([2.0, 3.0], 10.0, 1) == pytest.approx(15.0)
    assert response([2.0, 3.0], 10.0, 64) == pytest.approx(3.0 * 64, rel=0.02)


# -- the model: more of anything never helps --------------------------------------------------------

SCALABLE = (
    "shared_load_wavefronts", "shared_store_wavefronts", "global_store_sectors", "local_sectors", "tensor_macs",
    "local_requests",
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TABLE), st.sampled_from(SCALABLE), st.floats(1.0, 8.0), st.sampled_from(sorted(DEVICES))
)
def test_more_of_a_counter_is_never_faster(row, field, factor, name):
    item = row[2]
    more = dataclasses.replace(item, **{field: int(getattr(item, field) * factor) + 1})
    assert modelled(more, name).us >= modelled(item, name).us * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TABLE), st.integers(2, 8), st.sampled_from(sorted(DEVICES)))
def test_more_scattered_loads_are_never_faster(row, factor, name):
    """The same requests touch more sectors and lines, and more distinct ones."""
    item = row[2]
    more = dataclasses.replace(
        item,
        global_load_sectors=item.global_load_sectors * factor,
        footprint={k: (read * factor, written) for k, (read, written) in item.footprint.items()},
        extra={k: v * (1 if k.startswith("atomic") else factor) for k, v in item.extra.items()},
    )
    assert modelled(more, name).us >= modelled(item, name).us * (1 - 1e-6)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TABLE), st.sampled_from(["fp32", "int", "special", "control", "barrier"]))
def test_more_instructions_are_never_faster(row, kind):
    item = row[2]
    mix = dict(item.warp_instructions)
    mix[kind] = mix.get(kind, 0) * 2 + 1000
    assert modelled(dataclasses.replace(item, warp_instructions=mix)).us >= modelled(item).us * (1 - 1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20000))
def test_a_larger_grid_is_never_faster(blocks):
    assert modelled(streaming(blocks + 132)).us >= modelled(streaming(blocks)).us * (1 - 1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 20000))
def test_fewer_resident_warps_are_never_faster_where_nothing_is_reused(registers, blocks):
    """With reuse they may be: fewer blocks share an L1."""
    slower = modelled(streaming(blocks), registers=registers + 48).us
    assert slower >= modelled(streaming(blocks), registers=registers).us * (1 - 1e-6)


def test_loads_in_flight_hide_latency():
    few = streaming(264)
    many = dataclasses.replace(few, loads_in_flight=4.0)
    assert modelled(many).us < modelled(few).us


def test_sampled_blocks_stand_for_the_grid():
    whole = streaming(4096)
    part = dataclasses.replace(streaming(64), grid=whole.grid, blocks_total=4096)
    assert modelled(part).us == pytest.approx(modelled(whole).us, rel=1e-9)


def test_the_second_launch_finds_what_the_first_left_in_l2():
    small = streaming(1024)  # 1 MiB in, 1 MiB out
    large = streaming(1 << 17)  # 128 MiB in: more than the L2
    for item, reused in ((small, True), (large, False)):
        both = model_plan(H200, [item, item], {"k": 32}, {})
        again = both.launches[1].traffic.dram_reads
        assert (again == 0) is reused
        assert both.launches[0].traffic.dram_reads > 0


# -- against one H200 ----------------------------------------------------------------------------------


def test_first_comparison_with_hardware():
    """Within a factor of two on each textbook kernel, and 20 % at the median (simulator.md's table)."""
    ratios = sorted(modelled(item).us / measured for _, measured, item in TABLE)
    assert ratios[0] > 0.5 and ratios[-1] < 2.0
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    assert errors[len(errors) // 2] < 0.2


@pytest.mark.parametrize(
    "names",
    [
        ("matmul uncoalesced", "matmul naive", "matmul tiled 16", "matmul tiled 32", "matmul register 4x4"),
        ("transpose naive", "transpose shared", "transpose padded"),
        ("transpose naive", "copy"),
        ("reduction atomics", "reduction tree", "reduction shuffles"),
        ("softmax row thread", "softmax row block", "softmax registers"),
    ],
)
def test_order_within_each_family_is_the_measured_one(names):
    times = [modelled(BY_NAME[name][1]).us for name in names]
    assert times == sorted(times, reverse=True), dict(zip(names, times, strict=True))
    measured = [BY_NAME[name][0] for name in names]
    assert measured == sorted(measured, reverse=True)


def test_limiters_are_what_the_hardware_showed():
    limiter = {name: modelled(item).limiter for name, _, item in TABLE}
    assert limiter["matmul uncoalesced"] == "global access"
    assert limiter["matmul tiled 16"] == "shared memory"
    assert limiter["transpose naive"] == "l2"
    assert limiter["transpose shared"] == "shared memory"
    assert limiter["transpose padded"] == "dram"
    assert limiter["reduction atomics"] == limiter["reduction tree"] == "atomics"
    assert limiter["reduction shuffles"] == "memory latency"
    assert modelled(streaming(1)).limiter == "launch"


def test_limits_sum_to_the_time_and_uncertainty_is_of_the_ratio():
    for _, _, item in TABLE:
        found = modelled(item)
        assert sum(found.limits.values()) == pytest.approx(found.us)
        assert 0.0 < found.uncertainty < 0.5
        assert ratio_spread(found, found) == 0.0
    different = ratio_spread(
        modelled(BY_NAME["transpose naive"][1]), modelled(BY_NAME["transpose padded"][1])
    )
    alike = ratio_spread(modelled(BY_NAME["matmul tiled 16"][1]), modelled(BY_NAME["matmul tiled 32"][1]))
    assert alike < different


def test_the_same_counters_give_the_same_bits():
    for _, _, item in TABLE:
        assert modelled(item) == modelled(dataclasses.replace(item))


# -- profile ----------------------------------------------------------------------------------------------


def test_profile_of_a_copy():
    item = streaming(1 << 16)
    found = profile(H200, [CaseResult(modelled(item), (item,), 1.0, 30.0, 2.0 * (1 << 26))], 0)
    assert found.sectors_per_request == 4.0
    assert 60.0 < found.occupancy_percent < 100.0  # of 100: short blocks leave their places empty for a while
    # of 128 MiB, what the L2 still holds when the kernel ends has not been written to device memory
    assert found.bytes_over_floor == pytest.approx(1.0 - L2_DIRTY * 60 / 128)
    assert 40 < found.dram_percent < 91
    assert found.bank_conflict_ways != found.bank_conflict_ways  # NaN: no shared memory
    assert found.launches == 1.0


# -- agreement figures ------------------------------------------------------------------------------------


def _row(task: str, modelled_us: float | None, measured_us: float | None) -> Row:
    return Row(task, "p", "TIMED", modelled_us, measured_us, None, 0.1)


def test_figures_by_hand():
    rows = [_row("a", m, r) for m, r in ((10, 20), (20, 40), (30, 61))]
    rows += [_row("b", m, r) for m, r in ((10, 30), (20, 20), (30, 10))]
    found = figures([*rows, _row("b", None, 5), _row("c", 1.0, None)])
    assert found.spearman == pytest.approx(0.0) and found.spearman_worst_task == pytest.approx(-1.0)
    assert found.worst_task == "b" and found.programs == 6 and found.tasks == 2
    assert found.pairs == 6 and found.pairs_right == pytest.approx(0.5)
    assert found.mape == pytest.approx((1.0 + 61 / 30 - 1) / 2)


def test_pairs_that_hardware_does_not_settle_are_left_out():
    found = figures([_row("a", 10, 100.0), _row("a", 20, 105.0)])
    assert found.pairs == 0 and found.pairs_right is None


def test_equal_models_of_different_programs_count_as_wrong():
    found = figures([_row("a", 10, 100.0), _row("a", 10, 200.0)])
    assert found.pairs_right == 0.0 and found.spearman is None


def test_a_malformed_file_of_measured_times_is_named(tmp_path):
    path = tmp_path / "measured.json"
    path.write_text(
        '{"programs": [{"task": "softmax", "name": "x", "text": "", "measured_us": {"bench0": 0}}]}'
    )
    with pytest.raises(KbError, match="not a positive number"):
        read_measured(path)


# -- devices ----------------------------------------------------------------------------------------------


def test_occupancy_by_hand():
    assert occupancy(H200, 32, 0, 256) == 64
    assert occupancy(H200, 64, 0, 256) == 32  # 65,536 registers / (64 * 32) = 32 warps
    assert occupancy(H200, 255, 0, 1024) == 0  # 32 warps of 255 registers do not fit
    assert resident_blocks(H200, 32, 100 << 10, 128) == 2
    assert resident_blocks(H200, 32, 227 << 10, 128) == 1
    assert resident_blocks(H200, 32, 228 << 10, 128) == 0
    assert resident_blocks(H200, 16, 0, 32) == 32
    assert occupancy(DEVICES["T4"], 32, 0, 256) == 32


def test_unknown_device_names_the_known_ones():
    with pytest.raises(KbError, match="H200, H100"):
        device("B9000")
    assert device("h200") is DEVICES["H200"]


def test_floor_is_traffic_or_operations():
    task = load_task("softmax")
    case = Case("bench0", {"rows": 4096, "cols": 4096})
    # 64 MiB of input at 4.8 TB/s, and of the 64 MiB output what the 60 MiB L2 cannot hold
    assert floor_us(H200, task, case) == pytest.approx((128 - 60) * 2**20 / 4.8e6, rel=1e-6)
    heavy = dataclasses.replace(task, flops="1000000 * rows * cols")
    assert floor_us(H200, heavy, case) > 1e4
    with pytest.raises(KbError, match="no peak"):
        H200.peak_ops("decimal")
