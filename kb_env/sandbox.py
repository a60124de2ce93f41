"""Runs a command in the strongest box this machine offers, and says which that is.

The box is ``stub/box.cpp``, a small supervisor that is compiled once. The ladder, strongest first:

1. own user, mount, process, network and IPC namespaces: the command sees the system's libraries,
   what it was given, one scratch folder, and no other process, network or file of this machine;
2. where namespaces are refused (containers by default): Landlock for files, seccomp for system
   calls, an own user id where the caller is root.

Landlock and seccomp also run on top of the first rung. Limits on time, memory, file size, processes
and open files, an own session, the kill of everything the command started, bounded output and a
clean environment hold on every rung. A run costs about 5 ms.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kb_env.store import Store, default_store
from kb_env.types import KbError, digest

_SOURCE = Path(__file__).parent / "stub"

USER_NAMESPACE, NAMESPACES, NETWORK, LANDLOCK, SECCOMP, USER = 1, 2, 4, 8, 16, 32
_NAMES = {
    NAMESPACES: "namespaces (mount, process, IPC)",
    NETWORK: "network namespace",
    LANDLOCK: "Landlock",
    SECCOMP: "seccomp",
    USER: "own user id",
}
_WEAKER = {
    NAMESPACES: "no namespaces: the command can see (not signal) other processes of its user",
    NETWORK: "no network namespace: only seccomp and Landlock keep the network away",
    LANDLOCK: "no Landlock (needs Linux 5.13)",
    SECCOMP: "no seccomp",
}

#: What compilers and C++ programs need of the system; links among them are followed.
_SYSTEM: tuple[str, ...] = (
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/include",
    "/bin",
    "/lib",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
#: Seconds that the supervisor may take beyond the box's own limit before it is killed itself.
_GRACE = 5.0


@dataclass(frozen=True)
class Box:
    """Limits of one run. Times in seconds, sizes in bytes.

    ``readable`` is what the command may read besides the system's libraries and compilers;
    ``scratch`` is the one folder it may write, and its working directory. With ``record_bytes`` the
    command has descriptor 3 to write a record to, of which that much is kept.
    """

    seconds: float = 30.0
    memory_bytes: int = 6 << 30
    file_bytes: int = 256 << 20
    processes: int = 64
    open_files: int = 256
    output_bytes: int = 1 << 20
    record_bytes: int = 0
    readable: tuple[Path, ...] = ()
    scratch: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exit code or signal (both None if it ran out of time), and its bounded output."""

    exit: int | None
    signal: int | None
    timed_out: bool
    stdout: bytes
    stderr: bytes
    seconds: float
    record: bytes = b""


@dataclass(frozen=True)
class Report:
    """What ``kb doctor`` shows: active layers, and what is weaker here than it could be."""

    layers: tuple[str, ...]
    weaker: tuple[str, ...]


def run_boxed(command: Sequence[str], box: Box, stdin: bytes = b"") -> Outcome:
    """Run ``command`` (an absolute path and arguments) inside ``box``; never raises for what it does.

    Raises:
        KbError: if the box itself cannot be set up.
    """
    return _run(command, box, stdin, layers())


def describe() -> Report:
    """The layers in use on this machine and what is missing."""
    active = layers()
    shown = [name for bit, name in _NAMES.items() if active & bit]
    weaker = [text for bit, text in _WEAKER.items() if not active & bit]
    if not active & (USER | USER_NAMESPACE):
        weaker.append("the command runs under the caller's user id: limits on processes are shared with it")
    return Report((*shown, "limits", "own session, whole tree killed"), tuple(weaker))


@lru_cache(maxsize=1)
def layers() -> int:
    """The strongest set of layers that works here, found by running ``true`` in each.

    Raises:
        KbError: if not even the weakest box works.
    """
    probe = Box(seconds=5.0, memory_bytes=1 << 30)
    own = USER if os.geteuid() == 0 else 0
    base = sum(bit for bit in (LANDLOCK, SECCOMP, own) if bit and _works(bit, probe))
    spaces = (NAMESPACES | NETWORK, NAMESPACES)
    rungs = [bits | base for bits in spaces if os.geteuid() == 0]
    rungs += [bits | USER_NAMESPACE | base & ~USER for bits in spaces]
    for rung in (*rungs, base):
        if _works(rung, probe):
            return rung
    raise KbError("cannot start a sandboxed process: this machine's limits refuse even a plain one")


def _works(bits: int, box: Box) -> bool:
    try:
        return _run([shutil.which("true") or "/bin/true"], box, b"", bits).exit == 0
    except KbError:
        return False


@lru_cache(maxsize=1)
def _supervisor() -> str:
    """Path of the compiled supervisor, from the default store (or a folder of this process)."""
    sources = {name: (_SOURCE / name).read_bytes() for name in ("box.cpp", "confine.h")}
    compiler = shutil.which("g++")
    if compiler is None:
        raise KbError("no C++ compiler: install g++ (Debian: apt-get install g++)")
    key = "box-" + digest(b"\0".join((*sources.values(), compiler.encode())))
    store = Store(default_store())
    try:
        store.obtain(key, lambda: _compile(compiler, sources), executable=True)
    except KbError:
        store = Store(Path(tempfile.mkdtemp(prefix="kb-box-")))
        store.obtain(key, lambda: _compile(compiler, sources), executable=True)
    path = store.path(key, "box")
    if path is None:
        raise KbError(f"the store {store.folder} does not keep what is written to it: check the disk")
    return str(path)


def _compile(compiler: str, sources: Mapping[str, bytes]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="kb-box-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_bytes(text)
        # A static program starts faster; not every system has the static libraries.
        for kind in (["-static"], []):
            command = [compiler, "-std=c++17", "-O1", *kind, "box.cpp", "-o", "box"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return {"box": (Path(folder) / "box").read_bytes()}
    raise KbError(f"cannot compile the sandbox with {compiler}: {done.stderr.strip()[-200:]}")


@lru_cache(maxsize=1)
def _system_paths() -> tuple[str, ...]:
    found: list[str] = []
    for name in _SYSTEM:
        if os.path.exists(name):
            found += [name] if not os.path.islink(name) else [name, os.path.realpath(name)]
    return tuple(dict.fromkeys(found))


def _arguments(box: Box, bits: int, status: int, record: int) -> list[str]:
    facts: dict[str, object] = {
        "--layers": bits,
        "--parent": os.getpid(),
        "--wall-ms": max(1, int(box.seconds * 1000)),
        "--status": status,
        "--memory": box.memory_bytes,
        "--file": box.file_bytes,
        "--processes": box.processes,
        "--open": box.open_files,
    }
    if record >= 0:
        facts["--record"] = record
    if box.scratch is not None:
        facts["--scratch"] = box.scratch.resolve()
    arguments = [str(part) for pair in facts.items() for part in pair]
    for path in (*_system_paths(), *(str(item.resolve()) for item in box.readable)):
        arguments += ["--read", path]
    return arguments


def _run(command: Sequence[str], box: Box, stdin: bytes, bits: int) -> Outcome:
    started = time.monotonic()
    inside = "/scratch" if bits & NAMESPACES else str(box.scratch)
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TMPDIR": inside if box.scratch else "/tmp"}
    status_read, status_write = os.pipe()
    record_read, record_write = os.pipe() if box.record_bytes else (-1, -1)
    with tempfile.TemporaryFile() as source:  # a file, so that the command may read it when it likes
        source.write(stdin)
        source.seek(0)
        passed = tuple(fd for fd in (status_write, record_write) if fd >= 0)
        try:
            arguments = _arguments(box, bits, status_write, record_write)
            process = subprocess.Popen(
                [_supervisor(), *arguments, "--", *command],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, **box.environment},
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError as error:
            for fd in (status_read, record_read):
                if fd >= 0:
                    os.close(fd)
            raise KbError(
                f"cannot start the sandbox ({error.strerror}): check limits on processes"
            ) from error
        finally:
            for fd in passed:
                os.close(fd)
    assert process.stdout is not None and process.stderr is not None
    pipes = {
        process.stdout.fileno(): box.output_bytes,
        process.stderr.fileno(): box.output_bytes,
        status_read: 256,
    }
    if record_read >= 0:
        pipes[record_read] = box.record_bytes
    try:
        kept = _drain(process, pipes, started + box.seconds + _GRACE)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        os.close(status_read)
        if record_read >= 0:
            os.close(record_read)
    out, err, status, *rest = (bytes(kept[fd]) for fd in pipes)
    return _outcome(status, out, err, time.monotonic() - started, rest[0] if rest else b"")


def _outcome(status: bytes, out: bytes, err: bytes, seconds: float, record: bytes) -> Outcome:
    """Turn the supervisor's one line into an outcome."""
    word, _, number = status.decode("ascii", "replace").strip().partition(" ")
    if word == "exit":
        return Outcome(int(number), None, False, out, err, seconds, record)
    if word == "signal":
        return Outcome(None, int(number), False, out, err, seconds, record)
    if word == "lost":  # the init was killed: by the kernel, for want of memory
        return Outcome(None, int(signal.SIGKILL), False, out, err, seconds, record)
    if word in ("late", ""):
        return Outcome(None, None, True, out, err, seconds, record)
    stage = word.removeprefix("setup-")
    reason = os.strerror(int(number)) if number.isdigit() else number
    raise KbError(f"cannot set up the sandbox ({stage}: {reason}): `kb doctor` shows what works here")


def _drain(
    process: subprocess.Popen[bytes], pipes: Mapping[int, int], deadline: float
) -> dict[int, bytearray]:
    """Read all pipes until they close, keeping each one's bound and dropping the rest.

    Ends shortly after the supervisor did, whoever still holds a pipe open, and at the deadline.
    """
    kept = {fd: bytearray() for fd in pipes}
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        for fd in pipes:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            now = time.monotonic()
            if ended is None and process.poll() is not None:
                ended = now
            if now > deadline or (ended is not None and now - ended > 0.5):
                break
            for key, _ in selector.select(0.05 if ended is not None else min(0.5, deadline - now)):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fd)
                room = pipes[key.fd] - len(kept[key.fd])
                kept[key.fd] += chunk[: max(0, room)]
    return kept
