"""The record parser meets hostile bytes: a plan or one fault, never another exception."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.plan import Launch, LaunchPlan, Upload, check_plan
from kb_env.record import LAYOUTS
from kb_env.record_frames import TABLE_BYTES, TENSOR_MAP_MAGIC, RecordFault, merge, parse
from kb_env.types import KbError, Status

ARGUMENTS = (("x", 4096), ("y", 4096))


def framed(body: bytes, status: int = 0) -> bytes:
    return struct.pack("<QQQ", 0, status, len(body)) + body


def launch(parameters: list[bytes], kernel: bytes = b"k") -> bytes:
    head = struct.pack("<BI", 1, len(kernel)) + kernel
    head += struct.pack("<9I", 1, 1, 1, 32, 1, 1, 0, 0, 0) + struct.pack("<BQII", 0, 0, 0, len(parameters))
    return head + b"".join(struct.pack("<I", len(p)) + p for p in parameters)


def attempt(one: bytes, two: bytes) -> None:
    try:
        records = parse(one, 1), parse(two, 1)
        if records[0] and records[1]:
            plan = merge("check0", ARGUMENTS, (records[0][0], records[1][0]), LAYOUTS)
            check_plan(plan, 1 << 30)
    except (RecordFault, KbError):
        pass


@settings(max_examples=300, deadline=None)
@given(one=st.binary(max_size=300), two=st.binary(max_size=300))
def test_garbage(one: bytes, two: bytes) -> None:
    attempt(one, two)
    attempt(framed(one), framed(two))


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_records(data: st.DataObject) -> None:
    memory = struct.pack("<BQQ", 6, 0, 64) + struct.pack("<BI", 7, 1) + b"s" + struct.pack("<QQ", 0, 16)
    body = memory + launch([bytes(8), b"abcd"]) + struct.pack("<BQBQI", 2, LAYOUTS[0][0], 1, 8, 0)
    body += struct.pack("<BQQ", 4, LAYOUTS[0][0], 4) + b"data" + struct.pack("<I", 0)
    body += struct.pack("<BI", 5, 1) + b"k" + struct.pack("<Ii", 1, 99) + b"\x09"
    raw = bytearray(framed(body))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    attempt(bytes(raw), bytes(raw))
    attempt(bytes(raw[:cut]), framed(body))


@settings(max_examples=200, deadline=None)
@given(
    buffer=st.integers(0, 1),
    addend=st.integers(-4096, 1 << 30),
    before=st.binary(max_size=24),
    odd=st.integers(0, 7),
)
def test_addresses_become_relocations(buffer: int, addend: int, before: bytes, odd: int) -> None:
    """Whatever surrounds it, an address in a struct comes out as buffer and addend; padding as zero."""
    before = before.ljust(-(-len(before) // 8) * 8, b"\1")
    bodies = []
    for first, stride, fill in LAYOUTS:
        address = first + stride * buffer + addend
        bodies.append(framed(launch([before + struct.pack("<Q", address) + bytes([fill]) * odd]) + b"\x09"))
    records = parse(bodies[0], 1)[0], parse(bodies[1], 1)[0]
    (op,) = merge("check0", ARGUMENTS, records, LAYOUTS).operations
    assert isinstance(op, Launch)
    (pointer,) = op.pointers
    assert (pointer.parameter, pointer.offset, pointer.buffer, pointer.addend) == (
        0,
        len(before),
        buffer,
        addend,
    )
    assert op.parameters == (before + bytes(8 + odd),)


@pytest.mark.parametrize("difference", [b"\1", b"\x10\x20\x30\x40\x50\x60\x70\x80"])
def test_other_differences_are_refused(difference: bytes) -> None:
    one = parse(framed(launch([bytes(len(difference))]) + b"\x09"), 1)[0]
    two = parse(framed(launch([difference]) + b"\x09"), 1)[0]
    with pytest.raises(RecordFault, match="depends on") as caught:
        merge("check0", ARGUMENTS, (one, two), LAYOUTS)
    assert caught.value.status is Status.REFUSED


def test_a_record_without_an_end_tells_how_it_ended() -> None:
    with pytest.raises(RecordFault, match="SIGSEGV"):
        parse(framed(launch([bytes(8)]), status=11), 1)
    with pytest.raises(RecordFault, match=r"exit\(3\)"):
        parse(framed(b"", status=3 << 8), 1)


def descriptor(address: int, figures: bytes = b"") -> bytes:
    dims = struct.pack("<5Q4Q", 16, 8, 0, 0, 0, 64, 0, 0, 0)
    rest = struct.pack("<5H5B6B", 16, 8, 0, 0, 0, 1, 1, 0, 0, 0, 7, 2, 0, 0, 0, 0)
    return (TENSOR_MAP_MAGIC + struct.pack("<Q", address) + (figures or dims + rest)).ljust(128, b"\0")


def merged(one: bytes, two: bytes) -> LaunchPlan:
    records = [parse(framed(launch([data]) + b"\x09"), 1)[0] for data in (one, two)]
    return merge("check0", ARGUMENTS, (records[0], records[1]), LAYOUTS)


def test_a_tensor_descriptor_becomes_figures_and_a_place() -> None:
    first, second = (base + stride for base, stride, _ in LAYOUTS)  # the second argument, y
    plan = merged(bytes(64) + descriptor(first + 256), bytes(64) + descriptor(second + 256))
    (tensor,) = plan.launches[0].tensor_maps
    assert (tensor.parameter, tensor.offset, tensor.buffer, tensor.addend) == (0, 64, 1, 256)
    assert (tensor.dims, tensor.strides, tensor.box, tensor.steps) == ((16, 8), (64,), (16, 8), (1, 1))
    assert plan.launches[0].parameters == (bytes(192),) and tensor.nbytes == 7 * 64 + 16 * 4
    check_plan(plan, 1 << 20)
    outside = merged(descriptor(first + 4000), descriptor(second + 4000))
    with pytest.raises(KbError, match="leave buffer y"):
        check_plan(outside, 1 << 20)


@settings(max_examples=200, deadline=None)
@given(figures=st.binary(min_size=93, max_size=93))
def test_hostile_descriptors_are_a_plan_or_a_fault(figures: bytes) -> None:
    first, second = (base + stride for base, stride, _ in LAYOUTS)
    try:
        check_plan(merged(descriptor(first, figures), descriptor(second, figures)), 1 << 30)
    except (RecordFault, KbError):
        pass


def upload(target: int, data: bytes) -> bytes:
    return struct.pack("<BQQ", 4, target, len(data)) + data + struct.pack("<I", 0)


def test_addresses_in_an_upload_become_relocations() -> None:
    bodies = []
    for base, stride, _ in LAYOUTS:
        table = struct.pack("<QQQ", base + 8, 77, base + stride)
        bodies.append(framed(launch([bytes(8)]) + upload(base + stride, table) + b"\x09"))
    records = [parse(body, 1)[0] for body in bodies]
    plan = merge("check0", ARGUMENTS, (records[0], records[1]), LAYOUTS)
    item = plan.operations[1]
    assert isinstance(item, Upload) and [(p.offset, p.buffer, p.addend) for p in item.pointers] == [
        (0, 0, 8),
        (16, 1, 0),
    ]
    assert item.packed([0x1000, 0x2000]) == struct.pack("<QQQ", 0x1008, 77, 0x2000)
    check_plan(plan, 1 << 20)
    with pytest.raises(RecordFault):  # what differs is no address
        one, two = (
            parse(framed(launch([bytes(8)]) + upload(LAYOUTS[i][0], bytes([i] * 8)) + b"\x09"), 1)[0]
            for i in (0, 1)
        )
        merge("check0", ARGUMENTS, (one, two), LAYOUTS)


@pytest.mark.parametrize("kind", ["tables", "descriptors"])
def test_a_plan_of_endless_addresses_is_refused(kind: str) -> None:
    """Each within its limits, but as many as a record has room for: each address costs time and memory."""
    bodies = []
    for base, stride, _ in LAYOUTS:
        if kind == "tables":
            many = upload(base + stride, struct.pack("<Q", base) * (TABLE_BYTES // 8)) * 3
        else:
            many = launch([descriptor(base) * 200]) * 100
        bodies.append(framed(launch([bytes(8)]) + many + b"\x09"))
    one, two = (parse(body, 1)[0] for body in bodies)
    with pytest.raises(RecordFault, match="addresses") as caught:
        merge("check0", ARGUMENTS, (one, two), LAYOUTS)
    assert caught.value.status is Status.REFUSED
