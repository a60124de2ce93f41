"""Messages between the controller, the runner and the oracle: length-framed msgpack, never pickle.

Each message is a frozen dataclass; a frame is four bytes of length, one byte that says which
dataclass, and its msgpack body, whose every field is type-checked on reading. The runner replays
hostile kernels, so nothing it sends is believed beyond the fields written down here, and nothing
that appears on its standard output or in its exit code is evidence of anything.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TypeVar

from kb_env.plan import LaunchPlan
from kb_env.records import RecordError, pack, unpack
from kb_env.types import KbError, Task

#: Largest frame read, in bytes: a cubin with its tables, or a plan with its uploads.
FRAME_LIMIT = 1 << 28

_HEADER = struct.Struct("<IB")
_POLLRDHUP = 0x2000


@dataclass(frozen=True)
class DeviceFacts:
    """What the driver says about the GPU a runner holds. Clocks in MHz."""

    name: str
    uuid: str
    architecture: str
    driver: int
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    clock_mhz: float
    memory_clock_mhz: float
    bus_bits: int
    shared_per_sm: int
    warps_per_sm: int


@dataclass(frozen=True)
class Ready:
    """First message of a runner: it holds a context and has replayed a known kernel correctly."""

    device: DeviceFacts


@dataclass(frozen=True)
class Reserve:
    """Allocate the arena; ``share`` asks for an IPC handle."""

    nbytes: int
    share: bool


@dataclass(frozen=True)
class Reserved:
    """``handle`` is the CUDA IPC handle, or empty where sharing was refused or not asked for."""

    handle: bytes


@dataclass(frozen=True)
class Load:
    """Load a cubin as ``side`` (0 candidate, 1 baseline)."""

    side: int
    image: bytes


@dataclass(frozen=True)
class Bind:
    """Resolve one case's plan. ``offsets`` gives each plan buffer's place in the arena, -1 for symbols."""

    side: int
    case: str
    plan: LaunchPlan
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class LaunchFacts:
    """Static facts of one bound launch."""

    kernel: str
    registers: int
    local_bytes: int
    shared_bytes: int
    blocks_per_sm: int


@dataclass(frozen=True)
class Bound:
    launches: tuple[LaunchFacts, ...]


@dataclass(frozen=True)
class Run:
    """Replay once. ``mirror`` is the byte count copied through host memory where IPC is refused, else 0."""

    side: int
    case: str
    reload: bool
    flush: bool
    spin_ns: int
    mirror: int
    #: mark the window for a profiler; the time is then not a measurement
    profile: bool = False


@dataclass(frozen=True)
class Ran:
    """Time by events, and by the runner's host clock from before the busy kernel to full rest, less its length.

    ``exposed`` says that the GPU caught up with the host inside the window: the time is no good.
    """

    microseconds: float
    host_us: float
    exposed: bool


@dataclass(frozen=True)
class Batch:
    """Replay ``cases`` in turn, ``runs`` runs in all, back to back and without events; none: the harness alone."""

    side: int
    cases: tuple[str, ...]
    runs: int
    flush: bool
    spin_ns: int


@dataclass(frozen=True)
class Batched:
    """A batch is over. Its time is the controller's to take; ``exposed`` says that the GPU waited for the host."""

    exposed: bool


@dataclass(frozen=True)
class Prove:
    """Run known kernels again and time a known wait, beside whatever is loaded."""


@dataclass(frozen=True)
class Copied:
    """First message of an oracle."""

    torch: str


@dataclass(frozen=True)
class Region:
    """A named span of the arena. ``kind`` is input, output, inout or workspace."""

    offset: int
    nbytes: int
    kind: str
    name: str


@dataclass(frozen=True)
class Pose:
    """The task whose inputs and reference the oracle is to use."""

    task: Task


@dataclass(frozen=True)
class Attach:
    """Map the runner's arena; an empty handle means the host mirror."""

    handle: bytes
    nbytes: int


@dataclass(frozen=True)
class Detach:
    """Unmap the arena (oracle); end in good order (runner)."""


@dataclass(frozen=True)
class Content:
    """Draw new inputs from a secret seed and compute what is expected of them.

    Contents of slots above 0 live beside slot 0's, for batches of runs; a new one of slot 0 ends them.
    """

    case: str
    seed: int
    slot: int = 0


@dataclass(frozen=True)
class Draw:
    """Draw a case's inputs and hand them over: for a run whose outputs nobody looks at."""

    case: str
    seed: int


@dataclass(frozen=True)
class Drawn:
    """Bytes of each input by name."""

    inputs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Feed:
    """Bytes of one argument."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Lay:
    """Where everything lies in the arena while one side's plan of one case runs; ``layout`` names it.

    The layout takes bytes [``start``, ``used``) of the arena and the content of ``slot``.
    """

    layout: int
    case: str
    regions: tuple[Region, ...]
    used: int
    start: int = 0
    slot: int = 0


@dataclass(frozen=True)
class Arm:
    """Write inputs, poison and guard bytes into the arena, by a layout laid before.

    ``expose`` leaves the expected outputs there as well: for tests of the controls.
    """

    layout: int
    poison: int
    guard: int
    expose: bool = False


@dataclass(frozen=True)
class Check:
    """Compare the arena with what was armed. ``layout`` is one armed before, -1 for the one armed last.

    Tests of the controls leave out checks, put a common tolerance in place of the task's (``numeric``) or
    believe the expected outputs that were exposed (``apart``).
    """

    guards: bool = True
    inputs: bool = True
    values: bool = True
    layout: int = -1
    numeric: bool = True
    apart: bool = True


@dataclass(frozen=True)
class Checked:
    ok: bool
    fault: str | None
    message: str
    worst: float | None


@dataclass(frozen=True)
class Library:
    """Time a library baseline: ``kind`` is eager, compile or max-autotune."""

    kind: str
    case: str
    seeds: tuple[int, ...]
    graph: bool


@dataclass(frozen=True)
class LibraryTimes:
    """``microseconds`` per seed; ``ok`` says that the outputs passed the task's own tolerance."""

    microseconds: tuple[float, ...]
    ok: bool
    message: str
    graph: bool


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class Fail:
    """The peer could not do it. ``kind``: ``cuda`` (a driver error), ``plan`` (data refused) or ``oracle``."""

    kind: str
    name: str
    message: str


Message = (
    Ready | Reserve | Reserved | Load | Bind | Bound | Run | Ran | Batch | Batched | Prove | Copied | Pose
    | Attach | Detach | Content | Draw | Drawn | Feed | Lay | Arm | Check | Checked
    | Library | LibraryTimes | Done | Fail
)  # fmt: skip

MESSAGES: tuple[type, ...] = (
    Ready, Reserve, Reserved, Load, Bind, Bound, Run, Ran, Batch, Batched, Prove, Copied, Pose,
    Attach, Detach, Content, Draw, Drawn, Feed, Lay, Arm, Check, Checked, Library, LibraryTimes, Done, Fail,
)  # fmt: skip

T = TypeVar("T")


class CudaFault(Exception):
    """A driver call failed; sticky or not, the runner that saw it ends."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class ChannelClosed(Exception):
    """The other side is gone, or sent something that is no message."""


class MessageTooLong(KbError):
    """A message is over what a frame may hold; with a program in it, the program's fault."""


class ChannelTimeout(Exception):
    """Nothing complete arrived in time."""


class Channel:
    """A message stream over one connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        body = pack(message)
        if len(body) > FRAME_LIMIT:
            raise MessageTooLong(
                f"a message of {len(body)} bytes is over {FRAME_LIMIT}: make the program smaller"
            )
        try:
            self._connection.settimeout(None)
            self._connection.sendall(_HEADER.pack(len(body), MESSAGES.index(type(message))) + body)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, seconds: float | None = None) -> Message:
        """The next message.

        Raises:
            ChannelTimeout: if it is not complete after ``seconds``.
            ChannelClosed: if the peer hung up or broke the format.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        length, tag = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if length > FRAME_LIMIT or tag >= len(MESSAGES):
            raise ChannelClosed(f"frame of {length} bytes with tag {tag}")
        try:
            return unpack(MESSAGES[tag], self._read(length, deadline))
        except RecordError as error:
            raise ChannelClosed(f"bad {MESSAGES[tag].__name__}: {error}") from error

    def _read(self, size: int, deadline: float | None) -> bytes:
        while len(self._buffer) < size:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ChannelTimeout
            try:
                self._connection.settimeout(left)
                data = self._connection.recv(1 << 20)
            except TimeoutError as error:
                raise ChannelTimeout from error
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("the connection was closed")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def hung_up(self) -> bool:
        """Whether the other side is known to be gone. False may be stale the moment it is said."""
        if self._buffer:
            return False
        try:
            # In time-out mode a peek would wait for the time limit, MSG_DONTWAIT or not.
            self._connection.setblocking(False)
            return self._connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._connection.close()


def open_channel(where: str) -> Channel:
    """A child's end: ``fd:N`` for an inherited socket, else the path of a listening Unix socket."""
    if where.startswith("fd:"):
        connection = socket.socket(fileno=int(where[3:]))
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(where)
    _die_with_controller(connection)
    return Channel(connection)


def _die_with_controller(connection: socket.socket) -> None:
    """End this process when the controller's end closes, even while the main thread waits for a hung kernel."""

    def wait() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), _POLLRDHUP)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
