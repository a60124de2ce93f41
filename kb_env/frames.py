"""An append-only file of records that survives ``kill -9``: length, CRC-32, bytes, again and again.

A file starts with a magic line. A frame is ``length`` and ``crc`` (unsigned 32 bit, little endian)
and ``length`` bytes. Whatever follows the last whole frame is the torn tail of a write that was
cut off; readers ignore it and the next writer removes it. Writers in several processes take turns
by a lock on the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from kb_env.types import KbError

_HEAD = struct.Struct("<II")
#: Largest frame, in bytes.
FRAME_LIMIT = 1 << 28


def scan(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Whole frames from ``start``: (offset behind the frame, its bytes). Stops at the torn tail."""
    at = start
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if length > FRAME_LIMIT or end > len(data):
            return
        payload = data[at + _HEAD.size : end]
        if zlib.crc32(payload) != crc:
            return
        yield end, payload
        at = end


def read_frames(path: Path, magic: bytes) -> list[bytes]:
    """All whole frames of a file.

    Raises:
        KbError: if there is no such file or it is of another kind.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KbError(f"cannot read {path}: {error.strerror}") from error
    _check_magic(data, magic, path)
    return [payload for _, payload in scan(data, len(magic))]


def _check_magic(data: bytes, magic: bytes, path: Path) -> None:
    if data and not magic.startswith(data[: len(magic)]):
        raise KbError(f"{path} is no {magic.decode().strip()} file")


class FrameWriter:
    """Appends frames to a file, each on disk before :meth:`append` returns."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path = path
        self._magic = magic
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise KbError(f"cannot write {path}: {error.strerror}") from error
        self._good = 0

    def __enter__(self) -> FrameWriter:
        """Take the file's lock and return with all whole frames of other writers behind us."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self.news()
        except BaseException:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def news(self) -> list[bytes]:
        """Frames others appended since the last look; removes a torn tail. Needs the lock."""
        size = os.fstat(self._file).st_size
        data = os.pread(self._file, size - self._good, self._good) if size > self._good else b""
        start = 0
        if self._good == 0:
            _check_magic(data, self._magic, self.path)
            if len(data) < len(self._magic):
                os.ftruncate(self._file, 0)
                self._write(self._magic)
                self._good = len(self._magic)
                return []
            start = len(self._magic)
        found, good = [], start
        for end, payload in scan(data, start):
            found.append(payload)
            good = end
        if good < len(data):
            os.ftruncate(self._file, self._good + good)
        self._good += good
        return found

    def append(self, payload: bytes) -> None:
        """Write one frame and wait for the disk. Needs the lock (``with writer: ...``)."""
        if len(payload) > FRAME_LIMIT:
            raise KbError(f"a record of {len(payload)} bytes is over the limit of {FRAME_LIMIT}")
        frame = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        self._write(frame)
        self._good += len(frame)

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError as error:
            raise KbError(f"cannot write {self.path}: {error.strerror}: free some space") from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
