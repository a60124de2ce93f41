"""The parent's side of the simulator process: start it, ask it, end and replace it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from kb_env.records import RecordError
from kb_env.sim.wire import Ended, Hello, Request, Response, WorkerGone, close_all, receive, send
from kb_env.types import KbError, Status

#: How long a new process may take until it is ready.
START_SECONDS = 60.0
#: How long it may take to say how a run ended whose answer broke off.
END_SECONDS = 5.0


@dataclass(frozen=True)
class Failure:
    """A request that the process did not survive."""

    status: Status
    message: str


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    channel: socket.socket
    owner: int  # pid of the process that started it: a fork must not share the connection


class Client:
    """One resident simulator process, started at the first request. Safe to share between threads.

    ``store`` is the folder that keeps compiled kernels; without one they are compiled anew.
    """

    def __init__(self, store: Path | None = None) -> None:
        self._store = store
        self._process: _Process | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the resident child, if one runs."""
        return self._process.popen.pid if self._process is not None else None

    def ask(self, request: Request, files: tuple[int, int], seconds: float) -> Response | Failure:
        """Have ``request`` answered within ``seconds`` of wall time.

        A process that was found dead, or died without a word, is replaced and asked once more: it
        may have been killed from outside. One that dies twice was killed by the candidate.
        """
        with self._lock:
            first = self._attempt(request, files, seconds)
            if isinstance(first, Failure) and first.status is Status.CRASHED:
                return self._attempt(request, files, seconds)
            return first

    def close(self) -> None:
        with self._lock:
            self._end()

    def _attempt(self, request: Request, files: tuple[int, int], seconds: float) -> Response | Failure:
        process = self._ready()
        deadline = time.monotonic() + seconds
        process.channel.settimeout(seconds)
        # The answer comes on a connection of its own: a hostile run has no hand on the next request's.
        ours, theirs = socket.socketpair()
        try:
            try:
                send(process.channel, request, (*files, theirs.fileno()))
            finally:
                theirs.close()
            response, sent = receive(ours, Response, deadline)
            close_all(sent)
            code = self._ended(process, request, deadline + END_SECONDS)
        except TimeoutError:
            self._end()
            return Failure(Status.TIMED_OUT, f"the simulator gave no answer within {seconds:.0f} s")
        except (WorkerGone, RecordError) as error:
            return self._broken(process, request, str(error))
        finally:
            ours.close()
        if response.number != request.number or code != 0:
            return Failure(Status.CRASHED, f"the simulator process ended with {_name(code)}")
        return response

    def _ended(self, process: _Process, request: Request, deadline: float) -> int:
        """Exit code of the child that ran a request, from the resident process."""
        ended, sent = receive(process.channel, Ended, deadline)
        close_all(sent)
        if ended.number != request.number:
            raise WorkerGone("the simulator process is out of step")
        return ended.code

    def _broken(self, process: _Process, request: Request, error: str) -> Failure:
        """What a run that ended without a whole answer counts as."""
        code: int | None
        try:
            code = self._ended(process, request, time.monotonic() + END_SECONDS)
        except (TimeoutError, WorkerGone, RecordError):
            code = self._end()
        if code == -signal.SIGXCPU:
            return Failure(
                Status.TIMED_OUT, f"the simulator used more than {request.cpu_seconds} s of processor"
            )
        return Failure(Status.CRASHED, f"the simulator process ended with {_name(code)} ({error})")

    def _ready(self) -> _Process:
        process = self._process
        if process is not None and process.owner != os.getpid():
            process.channel.close()  # a copy after fork: the parent keeps its own
            process = self._process = None
        if process is not None and process.popen.poll() is not None:
            self._end()
            process = None
        if process is None:
            process = self._process = _start(self._store)
        return process

    def _end(self) -> int | None:
        """Kill the process group and reap it; its exit code (negative: the signal)."""
        process, self._process = self._process, None
        if process is None or process.owner != os.getpid():
            return None
        process.channel.close()
        # A process that ended by itself gets a moment to be reaped with its own exit code.
        try:
            code = process.popen.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(process.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        last = process.popen.wait()
        return last if code is None else code


def _start(store: Path | None) -> _Process:
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).parents[2])
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(Path.home()),
        "PYTHONPATH": root,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "kb_env.sim.worker", str(theirs.fileno()), str(os.getpid())]
    command += [str(store)] if store is not None else []
    with tempfile.TemporaryFile() as words:
        try:
            popen = subprocess.Popen(
                command,
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise KbError(f"cannot start the simulator process: {error}; free memory or processes") from error
        finally:
            theirs.close()
        try:
            receive(ours, Hello, time.monotonic() + START_SECONDS)
        except (TimeoutError, WorkerGone, RecordError) as error:
            ours.close()
            popen.kill()
            popen.wait()
            words.seek(0)
            last = words.read(1 << 16).decode("utf-8", "replace").strip().splitlines() or [str(error)]
            raise KbError(f"the simulator process did not start ({last[-1]}): reinstall kb-env") from error
    return _Process(popen, ours, os.getpid())


def _name(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
