"""Records survive the round trip, and bytes that are not the record are refused."""

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb_env.plan import PLAN_SCHEMA, Buffer, Copy, Fill, Launch, LaunchPlan, Pointer, Upload
from kb_env.records import RecordError, pack, unpack
from kb_env.types import (
    BuildResult,
    Evaluation,
    Fault,
    Profile,
    Program,
    Status,
    StepRecord,
    Timing,
    Verification,
)

PLAN = LaunchPlan(
    PLAN_SCHEMA,
    "check0",
    (Buffer("argument", "x", 64), Buffer("workspace", "w0", 128)),
    (
        Fill(1, 0, 255, 128),
        Copy(1, 0, 0, 0, 64),
        Upload(1, 64, b"\0\xff"),
        Launch("k", (1, 1, 1), (32, 1, 1), 0, (b"\0" * 8, b"\1\2\3\4"), (Pointer(0, 0, 1, 4),), (2, 1, 1)),
    ),
)


def evaluation(text: str, number: float) -> Evaluation:
    timing = Timing("bench0", "initial", (number, 2.0), (3.0, number), 1.5, 1.4, 1.6, "modelled")
    return Evaluation(
        BuildResult(True, text, 0.5),
        Verification(True, None, 5, text, number),
        (timing,),
        Profile("sim", dram_percent=number),
        "sealed",
        "modelled",
        "H200",
        fault=Fault(Status.WRONG, "verify", text),
        seconds={"build": number},
        health={"clock": number, "name": text},
    )


def test_plan_round_trip_keeps_operation_types() -> None:
    assert unpack(LaunchPlan, pack(PLAN)) == PLAN


@given(st.text(), st.floats(allow_nan=False), st.binary(max_size=30))
def test_step_round_trip(text: str, number: float, junk: bytes) -> None:
    program = Program("softmax", text + junk.decode("utf-8", "surrogateescape"))
    step = StepRecord(
        3,
        text,
        program,
        None,
        evaluation(text, number),
        Status.WRONG,
        text,
        -0.01,
        None,
        1.0,
        notes={"t": text},
    )
    back = unpack(StepRecord, pack(step))
    assert back.before == program and back.notes == {"t": text} and back.status is Status.WRONG
    assert back.evaluation is not None and back.evaluation.profile is not None
    assert math.isnan(back.evaluation.profile.l2_hit_percent)
    assert pack(back) == pack(step)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError):
        unpack(LaunchPlan, data)


@given(st.data())
def test_a_damaged_record_is_refused_or_well_formed(data: st.DataObject) -> None:
    raw = bytearray(pack(PLAN))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        plan = unpack(LaunchPlan, bytes(raw))
    except RecordError:
        return
    assert isinstance(plan, LaunchPlan)
    assert all(isinstance(item, (Launch, Fill, Copy, Upload)) for item in plan.operations)


@pytest.mark.parametrize(
    "change",
    [{"schema": "1"}, {"schema": True}, {"extra": 1}, {"buffers": [["argument", "x", 1]]}, {"case": None}],
)
def test_wrong_types_are_refused(change: dict[str, object]) -> None:
    plain = msgpack.unpackb(pack(PLAN))
    with pytest.raises(RecordError):
        unpack(LaunchPlan, msgpack.packb({**plain, **change}))
