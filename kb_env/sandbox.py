"""Runs a command in the strongest box this machine offers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


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
    """How a run ended: exit code or signal (None if killed for time), and its bounded output."""

    exit: int | None
    signal: int | None
    timed_out: bool
    stdout: bytes
    stderr: bytes
    seconds: float
    record: bytes = b""


def run_boxed(command: Sequence[str], box: Box, stdin: bytes = b"") -> Outcome:
    started = time.monotonic()
    receive, send = os.pipe()
    process = subprocess.Popen(
        ["/bin/bash", "-c", f'exec 3>&{send}; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=box.scratch,
        env={"PATH": "/usr/bin:/bin", **box.environment},
        start_new_session=True,
        pass_fds=(send,),
    )
    os.close(send)
    import threading

    record: list[bytes] = []

    def drain() -> None:
        with os.fdopen(receive, "rb") as f:
            record.append(f.read())

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        out, err = process.communicate(stdin, timeout=box.seconds)
        late = False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        late = True
    thread.join()
    code = process.returncode
    return Outcome(
        code if code >= 0 and not late else None,
        -code if code < 0 and not late else None,
        late,
        out,
        err,
        time.monotonic() - started,
        record[0],
    )
