"""The launch plan: everything a candidate's host code asked the GPU to do, as data.

A plan is made by the recorder (kb_env/record.py) in a sandbox without a GPU, and replayed by
trusted code: the GPU runner or the simulator. It holds no address; every pointer is a relocation
into a buffer. The schema is versioned; whoever reads a plan checks it with :func:`check_plan`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kb_env.types import KbError

PLAN_SCHEMA = 1
#: Bytes of an element by CUtensorMapDataType, as far as a plan may use it.
TENSOR_MAP_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class Buffer:
    """Memory a plan refers to by its position in :attr:`LaunchPlan.buffers`.

    ``kind`` is ``argument`` (``name`` is the argument's name), ``workspace`` (allocated by the
    candidate; content undefined before first write) or ``symbol`` (a module global; ``name`` is mangled).
    """

    kind: str
    name: str
    nbytes: int


@dataclass(frozen=True)
class Pointer:
    """Eight bytes of a kernel parameter that hold an address: buffer base plus ``addend``."""

    parameter: int
    offset: int
    buffer: int
    addend: int


@dataclass(frozen=True)
class TensorMap:
    """A descriptor for the tensor copy engine, in 128 bytes of a kernel parameter; encoded anew at replay.

    The fields are the arguments of the driver's cuTensorMapEncodeTiled: ``strides`` in bytes, one fewer than
    ``dims``; enumerators by number. The tensor begins ``addend`` bytes into the buffer.
    """

    parameter: int
    offset: int
    buffer: int
    addend: int
    dtype: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int

    @property
    def nbytes(self) -> int:
        """From the tensor's first byte to its last, over all dimensions."""
        rows = sum((dim - 1) * stride for dim, stride in zip(self.dims[1:], self.strides, strict=True))
        return rows + self.dims[0] * TENSOR_MAP_BYTES[self.dtype]


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``parameters`` holds each parameter's bytes, zero where a pointer or a descriptor goes."""

    kernel: str
    grid: Dim
    block: Dim
    shared_bytes: int
    parameters: tuple[bytes, ...]
    pointers: tuple[Pointer, ...]
    cluster: Dim | None = None
    cooperative: bool = False
    stream: int = 0
    tensor_maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class Fill:
    """cudaMemset: ``nbytes`` bytes of value ``byte``."""

    buffer: int
    offset: int
    byte: int
    nbytes: int
    stream: int = 0


@dataclass(frozen=True)
class Copy:
    """A device-to-device copy."""

    target: int
    target_offset: int
    source: int
    source_offset: int
    nbytes: int
    stream: int = 0


@dataclass(frozen=True)
class Upload:
    """Bytes from the candidate's host memory (the same for any data) to a buffer, zero where a pointer goes.

    A pointer's ``parameter`` is 0, its ``offset`` the place in the bytes.
    """

    target: int
    offset: int
    data: bytes
    stream: int = 0
    pointers: tuple[Pointer, ...] = ()

    def packed(self, addresses: Sequence[int]) -> bytes:
        """The bytes with the addresses of the plan's buffers written in, little-endian."""
        if not self.pointers:
            return self.data
        out = bytearray(self.data)
        for pointer in self.pointers:
            value = (addresses[pointer.buffer] + pointer.addend) & (1 << 64) - 1
            out[pointer.offset : pointer.offset + 8] = value.to_bytes(8, "little")
        return bytes(out)


@dataclass(frozen=True)
class KernelAttribute:
    """cudaFuncSetAttribute. ``name`` is ``max_dynamic_shared`` or ``shared_carveout``."""

    kernel: str
    name: str
    value: int


Operation = Launch | Fill | Copy | Upload


@dataclass(frozen=True)
class LaunchPlan:
    """What one call of the entry function does, in issue order."""

    schema: int
    case: str
    buffers: tuple[Buffer, ...]
    operations: tuple[Operation, ...]
    attributes: tuple[KernelAttribute, ...] = ()

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(item for item in self.operations if isinstance(item, Launch))

    @property
    def workspace_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers if buffer.kind == "workspace")


def check_plan(plan: LaunchPlan, workspace_limit: int) -> None:
    """Check a plan from the recorder before anything trusts it.

    Raises:
        KbError: naming the first thing that is out of bounds.
    """
    if plan.schema != PLAN_SCHEMA:
        raise KbError(f"plan schema {plan.schema} is not {PLAN_SCHEMA}: record the program again")
    if not plan.launches:
        raise KbError("the program launched no kernel")
    if plan.workspace_bytes > workspace_limit:
        raise KbError(f"workspace of {plan.workspace_bytes} bytes is over the task's {workspace_limit}")

    def span(buffer: int, offset: int, nbytes: int) -> None:
        if not 0 <= buffer < len(plan.buffers):
            raise KbError(f"plan names buffer {buffer} of {len(plan.buffers)}")
        if offset < 0 or nbytes < 0 or offset + nbytes > plan.buffers[buffer].nbytes:
            raise KbError(f"{nbytes} bytes at {offset} leave buffer {plan.buffers[buffer].name}")

    for item in plan.operations:
        if isinstance(item, Launch):
            _check_launch(item, len(plan.buffers))
            for tensor in item.tensor_maps:
                _check_tensor_map(tensor, item)
                span(tensor.buffer, tensor.addend, tensor.nbytes)
        elif isinstance(item, Fill):
            span(item.buffer, item.offset, item.nbytes)
        elif isinstance(item, Copy):
            span(item.target, item.target_offset, item.nbytes)
            span(item.source, item.source_offset, item.nbytes)
        else:
            span(item.target, item.offset, len(item.data))
            _check_pointers(item.pointers, (item.data,), len(plan.buffers), "an upload")


def _check_launch(launch: Launch, buffers: int) -> None:
    gx, gy, gz = launch.grid
    bx, by, bz = launch.block
    if min(launch.grid) < 1 or gx >= 1 << 31 or gy > 65535 or gz > 65535:
        raise KbError(f"grid {launch.grid} of {launch.kernel} is out of range")
    if min(launch.block) < 1 or bx * by * bz > 1024 or bz > 64:
        raise KbError(f"block {launch.block} of {launch.kernel} is out of range (1 to 1024 threads)")
    if not 0 <= launch.shared_bytes <= 232448:
        raise KbError(f"{launch.shared_bytes} bytes of shared memory for {launch.kernel} are out of range")
    _check_pointers(launch.pointers, launch.parameters, buffers, launch.kernel)


def _check_pointers(
    pointers: tuple[Pointer, ...], parameters: tuple[bytes, ...], buffers: int, whose: str
) -> None:
    for pointer in pointers:
        if not 0 <= pointer.parameter < len(parameters):
            raise KbError(f"{whose} has no parameter {pointer.parameter}")
        if not 0 <= pointer.buffer < buffers:
            raise KbError(f"plan names buffer {pointer.buffer} of {buffers}")
        if pointer.offset < 0 or pointer.offset + 8 > len(parameters[pointer.parameter]):
            raise KbError(f"pointer outside parameter {pointer.parameter} of {whose}")


def _check_tensor_map(tensor: TensorMap, launch: Launch) -> None:
    rank = len(tensor.dims)
    sizes = (len(tensor.strides) + 1, len(tensor.box), len(tensor.steps))
    if not 1 <= rank <= 5 or sizes != (rank, rank, rank):
        raise KbError(f"a tensor descriptor of {launch.kernel} has {rank} dimensions and {sizes} figures")
    if not 0 <= tensor.parameter < len(launch.parameters):
        raise KbError(f"{launch.kernel} has no parameter {tensor.parameter}")
    if not 0 <= tensor.offset <= len(launch.parameters[tensor.parameter]) - 128:
        raise KbError(f"tensor descriptor outside parameter {tensor.parameter} of {launch.kernel}")
    positive = (*tensor.dims, *tensor.strides, *tensor.box, *tensor.steps)
    if tensor.dtype not in TENSOR_MAP_BYTES or min(positive) < 1 or max(positive) >= 1 << 40:
        raise KbError(f"a tensor descriptor of {launch.kernel} is out of range")
    if max(tensor.interleave, tensor.swizzle, tensor.promotion, tensor.fill) > 7:
        raise KbError(f"a tensor descriptor of {launch.kernel} has an unknown mode")


def plan_digest(plan: LaunchPlan, rename: Callable[[str], str] = str) -> str:
    """Hash of everything a plan says but its case's name.

    ``rename`` maps kernel and symbol names before they are hashed (to leave out volatile parts).
    """
    state = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, bytes):
            state.update(b"b%d:" % len(value) + value)
        elif isinstance(value, tuple):
            state.update(b"(%d" % len(value))
            for item in value:
                add(item)
        elif dataclasses.is_dataclass(value):
            state.update(type(value).__name__.encode() + b"{")
            for f in dataclasses.fields(value):
                item = getattr(value, f.name)
                add(rename(item) if f.name in ("kernel", "name") else item)
        else:
            state.update(repr(value).encode() + b";")

    add((plan.schema, plan.buffers, plan.operations, plan.attributes))
    return state.hexdigest()[:32]
