"""Where each buffer of a plan lies in the arena, the one allocation the runner shares with the oracle.

Every argument has the same place for candidate and baseline; workspaces follow. Buffers start on
2 MiB boundaries, as the recorder's addresses do, and all that lies between them is guard band.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kb_env.gpu.protocol import Region
from kb_env.plan import Launch, LaunchPlan
from kb_env.types import Case, KbError, Task

#: Alignment of every buffer, in bytes.
ALIGN = 2 << 20
#: Smallest guard band after a buffer, in bytes.
GUARD = 64 << 10


@dataclass(frozen=True)
class Layout:
    """``regions`` in address order; ``offsets`` per plan buffer (-1 for a symbol); ``used`` bytes in all."""

    regions: tuple[Region, ...]
    offsets: tuple[int, ...]
    used: int

    def moved(self, by: int) -> Layout:
        """The same layout, ``by`` bytes further on."""
        regions = tuple(replace(region, offset=region.offset + by) for region in self.regions)
        return Layout(regions, tuple(o + by if o >= 0 else o for o in self.offsets), self.used + by)


def place(task: Task, case: Case, plan: LaunchPlan) -> Layout:
    """Lay out a plan's buffers.

    Raises:
        KbError: if the plan names an argument the task has not, or claims another size for one.
    """
    regions: list[Region] = []
    cursor = ALIGN

    def add(kind: str, name: str, nbytes: int) -> int:
        nonlocal cursor
        offset = cursor
        regions.append(Region(offset, nbytes, kind, name))
        cursor = -(-(offset + nbytes + GUARD) // ALIGN) * ALIGN
        return offset

    places = {
        argument.name: (add(argument.kind, argument.name, nbytes := argument.nbytes(case.sizes)), nbytes)
        for argument in task.arguments
        if argument.kind != "scalar"
    }
    offsets = []
    for buffer in plan.buffers:
        if buffer.kind == "argument":
            if buffer.name not in places:
                raise KbError(f"the plan names an argument {buffer.name!r} that task {task.name} has not")
            offset, nbytes = places[buffer.name]
            if nbytes != buffer.nbytes:
                raise KbError(f"the plan says {buffer.nbytes} bytes for {buffer.name}, the task {nbytes}")
            offsets.append(offset)
        elif buffer.kind == "workspace":
            offsets.append(add("workspace", buffer.name, buffer.nbytes))
        elif buffer.kind == "symbol":
            offsets.append(-1)
        else:
            raise KbError(f"the plan has a buffer of unknown kind {buffer.kind!r}")
    return Layout(tuple(regions), tuple(offsets), cursor + ALIGN)


def gaps(regions: tuple[Region, ...], used: int, start: int = 0) -> list[tuple[int, int]]:
    """Spans of arena bytes [start, used) that no buffer covers: the guard bands, in address order."""
    spans = []
    cursor = start
    for region in regions:
        spans.append((cursor, region.offset))
        cursor = region.offset + region.nbytes
    return [*spans, (cursor, used)]


def pack_parameters(launch: Launch, addresses: list[int]) -> list[bytes]:
    """Each parameter's bytes with the plan's pointers written in, little-endian."""
    parameters = [bytearray(data) for data in launch.parameters]
    for pointer in launch.pointers:
        address = (addresses[pointer.buffer] + pointer.addend) & (1 << 64) - 1
        parameters[pointer.parameter][pointer.offset : pointer.offset + 8] = address.to_bytes(8, "little")
    return [bytes(parameter) for parameter in parameters]
