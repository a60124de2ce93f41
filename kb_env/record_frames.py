"""The recorder's binary record, parsed as hostile bytes, and two records merged into one plan."""

from __future__ import annotations

import signal
import struct
from dataclasses import dataclass

from kb_env.plan import (
    PLAN_SCHEMA,
    Buffer,
    Copy,
    Dim,
    Fill,
    KernelAttribute,
    Launch,
    LaunchPlan,
    Operation,
    Pointer,
    TensorMap,
    Upload,
)
from kb_env.types import Status

#: Most operations, buffers and parameters of one plan.
OPERATION_LIMIT = 65536
BUFFER_LIMIT = 240
NAME_LIMIT = 4096
#: Most frames of one record, among them those that become no operation; and most bytes of parameters:
#: of one launch (what CUDA allows) and of all. They bound what a forged record costs its reader.
FRAME_LIMIT = 4 * OPERATION_LIMIT
PARAMETER_BYTES = 32764
TOTAL_PARAMETER_BYTES = 16 << 20

_ATTRIBUTES = {1: "max_dynamic_shared", 2: "shared_carveout", 3: "non_portable_cluster"}
Layout = tuple[int, int, int]


#: How the stub runtime begins a descriptor of the tensor copy engine (runtime.cpp), and its size and alignment.
TENSOR_MAP_MAGIC = b"kb tensor map 1\0"
TENSOR_MAP_SIZE, TENSOR_MAP_ALIGN = 128, 64
#: Uploads that hold addresses may have this many bytes.
TABLE_BYTES = 1 << 20
#: Addresses, bytes of half-written words and words of descriptors in one plan. Each costs this process
#: microseconds and a hundred bytes, and a record has room for eight million addresses; four to each operation
#: are more than programs need.
RELOCATION_LIMIT = 4 * OPERATION_LIMIT


class RecordFault(Exception):
    """Why a candidate's launcher gave no plan."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RawLaunch:
    kernel: str
    grid: Dim
    block: Dim
    cluster: Dim
    cooperative: bool
    shared_bytes: int
    stream: int
    parameters: tuple[bytes, ...]


@dataclass(frozen=True)
class RawFill:
    address: int
    byte: int
    nbytes: int
    stream: int


@dataclass(frozen=True)
class RawCopy:
    target: int
    source: int
    nbytes: int
    stream: int


@dataclass(frozen=True)
class RawUpload:
    target: int
    data: bytes
    stream: int


RawOperation = RawLaunch | RawFill | RawCopy | RawUpload


@dataclass(frozen=True)
class CaseRecord:
    """What one process did for one case; ``memory`` holds (kind, name, bytes) in order of address."""

    memory: tuple[tuple[str, str, int], ...]
    operations: tuple[RawOperation, ...]
    attributes: tuple[KernelAttribute, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise RecordFault(Status.CRASHED, "the launcher left a broken record")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def text(self) -> str:
        (size,) = self.numbers("I")
        if size > NAME_LIMIT:
            raise RecordFault(Status.CRASHED, "the launcher left a broken record")
        return self.take(size).decode("utf-8", "replace")

    @property
    def done(self) -> bool:
        return self.at >= len(self.data)


def parse(data: bytes, cases: int) -> list[CaseRecord]:
    """Records of the cases in order, as far as the recorder came.

    Raises:
        RecordFault: for the first case whose launcher did not return, with what ended it.
    """
    reader = _Reader(data)
    found: list[CaseRecord] = []
    while not reader.done and len(found) < cases:
        index, status, size = reader.numbers("QQQ")
        if index != len(found):
            raise RecordFault(Status.CRASHED, "the launcher left a broken record")
        found.append(_parse_case(reader.take(size), status))
    return found


def _parse_case(data: bytes, status: int) -> CaseRecord:
    reader = _Reader(data)
    memory: list[tuple[str, str, int]] = []
    operations: list[RawOperation] = []
    attributes: dict[tuple[str, str], int] = {}
    failed: str | None = None
    ended = False
    frames = parameter_bytes = 0
    while not reader.done and not ended:
        (code,) = reader.numbers("B")
        frames += 1
        if code == 1:
            launch = _launch(reader)
            parameter_bytes += sum(map(len, launch.parameters))
            operations.append(launch)
        elif code == 2:
            operations.append(RawFill(*reader.numbers("QBQI")))
        elif code == 3:
            operations.append(RawCopy(*reader.numbers("QQQI")))
        elif code == 4:
            target, size = reader.numbers("QQ")
            content = reader.take(size)
            operations.append(RawUpload(target, content, *reader.numbers("I")))
        elif code == 5:
            kernel, (which, value) = reader.text(), reader.numbers("Ii")
            attributes[kernel, _ATTRIBUTES.get(which, str(which))] = value
        elif code == 6:
            _, size = reader.numbers("QQ")
            memory.append(
                ("workspace", f"workspace{sum(kind == 'workspace' for kind, _, _ in memory)}", size)
            )
        elif code == 7:
            name, (_, size) = reader.text(), reader.numbers("QQ")
            memory.append(("symbol", name, size))
        elif code == 8:
            raise RecordFault(
                Status.REFUSED, f"the launcher does what a launch plan cannot express: {reader.text()}"
            )
        elif code == 9:
            ended = True
        elif code == 10:
            failed = f"the launch of {reader.text()} fails: {reader.text()}"
        elif code != 11:
            raise RecordFault(Status.CRASHED, "the launcher left a broken record")
        if code == 1:
            failed = None
        if frames > FRAME_LIMIT or parameter_bytes > TOTAL_PARAMETER_BYTES:
            raise RecordFault(Status.REFUSED, "the launcher issues more than a plan can hold")
        if len(operations) > OPERATION_LIMIT or len(memory) > BUFFER_LIMIT:
            raise RecordFault(
                Status.REFUSED, f"a plan may have {OPERATION_LIMIT} operations and {BUFFER_LIMIT} buffers"
            )
    if not ended:
        raise RecordFault(Status.CRASHED, _how(status) + (f"; {failed}" if failed else ""))
    if failed:
        raise RecordFault(Status.CRASHED, failed)
    found = tuple(
        KernelAttribute(kernel, name, value) for (kernel, name), value in sorted(attributes.items())
    )
    return CaseRecord(tuple(memory), tuple(operations), found)


def _launch(reader: _Reader) -> RawLaunch:
    kernel = reader.text()
    numbers = reader.numbers("9I")
    cooperative, shared, stream, count = reader.numbers("BQII")
    parameters: list[bytes] = []
    room = PARAMETER_BYTES
    for _ in range(count):
        (size,) = reader.numbers("I")
        room -= size + 1  # a parameter has at least one byte
        if room < 0:
            raise RecordFault(Status.REFUSED, f"a launch may have {PARAMETER_BYTES} bytes of parameters")
        parameters.append(reader.take(size))
    grid, block, cluster = numbers[0:3], numbers[3:6], numbers[6:9]
    return RawLaunch(kernel, grid, block, cluster, bool(cooperative), shared, stream, tuple(parameters))  # type: ignore[arg-type]


def _how(status: int) -> str:
    """A wait status in words."""
    number = status & 0x7F
    if number == 0:
        code = status >> 8 & 0xFF
        if code == 96:
            return "the launcher issues more than a plan can hold"
        return f"the launcher called exit({code})"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"the launcher crashed with {name}"


def merge(
    case: str,
    arguments: tuple[tuple[str, int], ...],
    records: tuple[CaseRecord, CaseRecord],
    layouts: tuple[Layout, ...],
) -> LaunchPlan:
    """One plan out of the records made under two layouts of fake addresses.

    Raises:
        RecordFault: if anything but addresses differs.
    """
    one, two = records
    if one.memory != two.memory or one.attributes != two.attributes:
        raise _differs("its allocations or attributes")
    if [type(item) for item in one.operations] != [type(item) for item in two.operations]:
        raise _differs("its sequence of operations")
    buffers = tuple(Buffer("argument", name, size) for name, size in arguments)
    buffers += tuple(Buffer(kind, name, size) for kind, name, size in one.memory)
    join = _Join(len(buffers), layouts)
    operations = tuple(join.operation(a, b) for a, b in zip(one.operations, two.operations, strict=True))
    return LaunchPlan(PLAN_SCHEMA, case, buffers, operations, one.attributes)


def _differs(what: str) -> RecordFault:
    return RecordFault(
        Status.REFUSED,
        f"plan depends on addresses, time or random numbers in {what}: it may depend on the sizes alone",
    )


@dataclass
class _Join:
    buffers: int
    layouts: tuple[Layout, ...]
    room: int = RELOCATION_LIMIT

    def locate(self, address: int, layout: Layout) -> tuple[int, int] | None:
        """Buffer and offset of a fake address; the offset may lie outside the buffer by up to 16 GiB."""
        first, stride, _ = layout
        index = round((address - first) / stride)
        offset = address - (first + index * stride)
        return (index, offset) if 0 <= index < self.buffers and abs(offset) < 1 << 34 else None

    def spend(self, places: int) -> None:
        self.room -= places
        if self.room < 0:
            raise RecordFault(Status.REFUSED, f"a plan may hold {RELOCATION_LIMIT} addresses")

    def place(self, one: int, two: int, what: str) -> tuple[int, int]:
        found = self.locate(one, self.layouts[0])
        if found is None or found != self.locate(two, self.layouts[1]):
            raise _differs(what)
        return found

    def operation(self, one: RawOperation, two: RawOperation) -> Operation:
        if isinstance(one, RawLaunch) and isinstance(two, RawLaunch):
            return self.launch(one, two)
        if isinstance(one, RawFill) and isinstance(two, RawFill):
            same = (one.byte, one.nbytes, one.stream) == (two.byte, two.nbytes, two.stream)
            buffer, offset = self.place(one.address, two.address, "a memset")
            if same:
                return Fill(buffer, offset, one.byte, one.nbytes, one.stream)
        if isinstance(one, RawCopy) and isinstance(two, RawCopy):
            target = self.place(one.target, two.target, "a copy")
            source = self.place(one.source, two.source, "a copy")
            if (one.nbytes, one.stream) == (two.nbytes, two.stream):
                return Copy(*target, *source, one.nbytes, one.stream)
        if isinstance(one, RawUpload) and isinstance(two, RawUpload):
            buffer, offset = self.place(one.target, two.target, "an upload")
            if TENSOR_MAP_MAGIC in one.data:
                raise RecordFault(
                    Status.REFUSED,
                    "an upload of tensor descriptors: pass them as __grid_constant__ parameters",
                )
            if (one.data, one.stream) == (two.data, two.stream):
                return Upload(buffer, offset, one.data, one.stream)
            if len(one.data) == len(two.data) <= TABLE_BYTES and one.stream == two.stream:
                data, pointers = self.relocate(0, one.data, two.data, "an upload")
                return Upload(buffer, offset, data, one.stream, tuple(pointers))
        raise _differs("a memory operation")

    def launch(self, one: RawLaunch, two: RawLaunch) -> Launch:
        shape = (one.kernel, one.grid, one.block, one.cluster, one.cooperative, one.shared_bytes, one.stream)
        if shape != (
            two.kernel,
            two.grid,
            two.block,
            two.cluster,
            two.cooperative,
            two.shared_bytes,
            two.stream,
        ):
            raise _differs(f"a launch of {one.kernel}")
        if [len(p) for p in one.parameters] != [len(p) for p in two.parameters]:
            raise _differs(f"a launch of {one.kernel}")
        parameters: list[bytes] = []
        pointers: list[Pointer] = []
        tensor_maps: list[TensorMap] = []
        for i, (a, b) in enumerate(zip(one.parameters, two.parameters, strict=True)):
            for at in range(0, len(a) - TENSOR_MAP_SIZE + 1, TENSOR_MAP_ALIGN):
                if a.startswith(TENSOR_MAP_MAGIC, at) and b.startswith(TENSOR_MAP_MAGIC, at):
                    end = at + TENSOR_MAP_SIZE
                    tensor_maps.append(self.tensor_map(i, at, a[at:end], b[at:end], one.kernel))
                    a, b = (p[:at] + bytes(TENSOR_MAP_SIZE) + p[end:] for p in (a, b))
            data, found = self.relocate(i, a, b, one.kernel)
            parameters.append(data)
            pointers += found
        return Launch(
            one.kernel,
            one.grid,
            one.block,
            one.shared_bytes,
            tuple(parameters),
            tuple(pointers),
            one.cluster if one.cluster != (0, 0, 0) else None,
            one.cooperative,
            one.stream,
            tuple(tensor_maps),
        )

    def tensor_map(self, parameter: int, at: int, one: bytes, two: bytes, kernel: str) -> TensorMap:
        """A descriptor out of what the stub wrote in the two recordings; plan.check_plan bounds its figures."""
        self.spend(TENSOR_MAP_SIZE // 8)
        start = len(TENSOR_MAP_MAGIC)
        if one[:start] + one[start + 8 :] != two[:start] + two[start + 8 :]:
            raise _differs(f"a tensor descriptor of {kernel}")
        address, *numbers = struct.unpack_from("<Q5Q4Q5H5B6B", one, start)
        (other,) = struct.unpack_from("<Q", two, start)
        buffer, addend = self.place(address, other, f"a tensor descriptor of {kernel}")
        dims, strides, box, steps = numbers[0:5], numbers[5:9], numbers[9:14], numbers[14:19]
        dtype, rank, interleave, swizzle, promotion, fill = numbers[19:25]
        if not 1 <= rank <= 5:
            raise RecordFault(Status.REFUSED, f"a tensor descriptor of {kernel} has {rank} dimensions")
        figures = tuple(dims[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), tuple(steps[:rank])
        return TensorMap(parameter, at, buffer, addend, dtype, *figures, interleave, swizzle, promotion, fill)

    def relocate(self, parameter: int, one: bytes, two: bytes, kernel: str) -> tuple[bytes, list[Pointer]]:
        """A parameter's bytes with addresses taken out, and where those go."""
        if one == two:
            return one, []
        out = bytearray(one)
        pointers: list[Pointer] = []
        at = 0
        while at < len(one):
            if at % 8 == 0 and one[at : at + 8] == two[at : at + 8]:
                at += 8
                continue
            self.spend(1)
            if at % 8 == 0 and at + 8 <= len(one):
                (a,), (b,) = struct.unpack_from("<Q", one, at), struct.unpack_from("<Q", two, at)
                found = self.locate(a, self.layouts[0])
                if found is not None and found == self.locate(b, self.layouts[1]):
                    pointers.append(Pointer(parameter, at, *found))
                    out[at : at + 8] = bytes(8)
                    at += 8
                    continue
            if one[at] != two[at]:
                # Padding that was never written shows the fill of either recording.
                if (one[at], two[at]) != (self.layouts[0][2], self.layouts[1][2]):
                    raise _differs(f"parameter {parameter} of {kernel}")
                out[at] = 0
            at += 1
        return bytes(out), pointers
