"""Child processes of the evaluator: started with a clean environment, asked with a deadline, killed as a group."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TypeVar

from kb_env.gpu.protocol import Channel, ChannelClosed, ChannelTimeout, Fail, Message, Ready
from kb_env.types import KbError

#: Variables a child keeps. Nothing else of the parent's environment reaches it.
_KEPT = (
    "PATH", "HOME", "LANG", "TMPDIR", "USER", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip

T = TypeVar("T")


class WorkerDied(Exception):
    """The process is gone, or broke the protocol."""


class WorkerTimeout(Exception):
    """It did not answer in time."""


class WorkerFailed(Exception):
    """It answered that it could not."""

    def __init__(self, fail: Fail) -> None:
        super().__init__(f"{fail.name}: {fail.message}")
        self.fail = fail


def _exiting(pid: int) -> bool:
    """Whether the kernel is taking the process apart: a GPU driver's share of that can last a second,
    and its sockets stay open that long. Flag PF_EXITING of /proc/PID/stat, see proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return bool(int(stat.rpartition(")")[2].split()[6]) & 4)


def clean_environment() -> dict[str, str]:
    """The environment of every child: nothing that a candidate or a user's shell could have planted."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    inherited = [entry for entry in sys.path if entry and Path(entry).is_absolute() and entry != root]
    environment["PYTHONPATH"] = os.pathsep.join([root, *inherited])
    environment["CUDA_MODULE_LOADING"] = "EAGER"
    environment["CUDA_CACHE_DISABLE"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


class Worker:
    """One child process and the channel to it.

    Args:
        module: what ``python -m`` runs.
        device: GPU index for the child.
        mirror: file descriptor of the host mirror, passed on.
        prefix: a launcher such as ``ncu`` with its options; the channel is then a socket in a private
            folder, because a launcher may close inherited descriptors.
    """

    def __init__(self, module: str, device: int, mirror: int = -1, prefix: tuple[str, ...] = ()) -> None:
        self.module = module
        #: a runner's first message, once it was read
        self.ready: Ready | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._folder: str | None = None
        self._channel: Channel | None = None
        self._listener: socket.socket | None = None
        passed = [mirror] if mirror >= 0 else []
        if prefix:
            self._folder = tempfile.mkdtemp(prefix="kb-env-")
            where = str(Path(self._folder) / "channel")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(where)
            self._listener.listen(1)
        else:
            ours, theirs = socket.socketpair()
            self._channel = Channel(ours)
            where = f"fd:{theirs.fileno()}"
            passed.append(theirs.fileno())
        command = [*prefix, sys.executable, "-m", module, "--channel", where, "--device", str(device)]
        self._process = subprocess.Popen(
            [*command, "--mirror", str(mirror)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd="/",
            env=clean_environment(),
            pass_fds=passed,
            start_new_session=True,
        )
        if not prefix:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exists(self) -> bool:
        """Whether the process is still there, be it dying."""
        return self._process.poll() is None

    def alive(self) -> bool:
        """Whether it can still be talked to. A process that was killed may take long to be gone."""
        if not self.exists() or _exiting(self._process.pid):
            return False
        return not (self._channel is not None and self._channel.hung_up())

    def expect(self, answer: type[T], seconds: float) -> T:
        """Wait for a message of type ``answer``.

        Raises:
            WorkerTimeout, WorkerDied, WorkerFailed: by what came instead.
        """
        deadline = time.monotonic() + seconds
        try:
            reply = self._connected(seconds).receive(max(deadline - time.monotonic(), 0.001))
        except ChannelTimeout as error:
            raise WorkerTimeout(f"no answer from {self.module} in {seconds:.1f} s") from error
        except ChannelClosed as error:
            raise WorkerDied(f"{self.module} ended: {error}{self._last_words()}") from error
        if isinstance(reply, Fail):
            raise WorkerFailed(reply)
        if not isinstance(reply, answer):
            raise WorkerDied(f"{self.module} answered {type(reply).__name__}, not {answer.__name__}")
        return reply

    def ask(self, message: Message, answer: type[T], seconds: float) -> T:
        """Send a request and wait for its answer; raises as :meth:`expect`."""
        try:
            self._connected(seconds).send(message)
        except ChannelClosed:
            pass  # it may have said why before it ended: read that
        return self.expect(answer, seconds)

    def _connected(self, seconds: float) -> Channel:
        if self._channel is None:
            assert self._listener is not None
            self._listener.settimeout(seconds)
            try:
                self._channel = Channel(self._listener.accept()[0])
            except TimeoutError as error:
                raise WorkerTimeout(f"{self.module} did not connect in {seconds:.1f} s") from error
        return self._channel

    def _last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"; its last words: {lines[-1]}" if lines else ""

    def wait(self, seconds: float) -> None:
        """Wait for an orderly end after the channel was closed."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def hang_up(self) -> None:
        """Close the channel: the child ends by itself."""
        if self._channel is not None:
            self._channel.close()
        if self._listener is not None:
            self._listener.close()

    def kill(self, wait: float = 5.0) -> None:
        """SIGKILL the whole group and collect it.

        Raises:
            KbError: if the kernel cannot end the process, which is the machine's failure.
        """
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.hang_up()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if wait:
            try:
                self._process.wait(wait)
            except subprocess.TimeoutExpired as error:
                raise KbError(
                    f"process {self._process.pid} does not end after SIGKILL: reset the GPU or reboot"
                ) from error
        self._errors.close()
