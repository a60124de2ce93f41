"""The record parser meets hostile bytes: a plan or one fault, never another exception."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.plan import Launch, check_plan
from kb_env.record import LAYOUTS
from kb_env.record_frames import RecordFault, merge, parse
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
