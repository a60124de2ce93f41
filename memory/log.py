"""The append-only log: length- and CRC-framed payloads in segment files. It is the truth.

A frame is ``marker(8) length(4) crc(4) payload``. The marker is random per segment (it stands in
the file's name), so that a program text inside a payload cannot imitate a frame: after damage the
reader looks for the next marker whose CRC holds and goes on from there. Appends are made under one
``flock``; a torn tail left by a killed writer is moved to ``torn/`` and cut off by the next one.
Compaction writes a new generation folder and switches to it with one rename of ``CURRENT``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import struct
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kb_env.types import KbError

HEAD = struct.Struct("<8sII")
MAX_PAYLOAD = 1 << 28


@dataclass(frozen=True, order=True)
class Position:
    """Where a frame begins: segment number and byte offset."""

    segment: int
    offset: int


@dataclass(frozen=True)
class Damage:
    """Bytes that are no valid frames. ``kind`` is ``middle`` (skipped) or ``tail`` (torn write)."""

    segment: int
    offset: int
    nbytes: int
    kind: str


@dataclass(frozen=True)
class Segment:
    number: int
    marker: bytes
    path: Path


def frame(marker: bytes, payload: bytes) -> bytes:
    head = HEAD.pack(marker, len(payload), 0)
    return HEAD.pack(marker, len(payload), zlib.crc32(payload, zlib.crc32(head))) + payload


def frame_at(data: bytes | memoryview, offset: int, marker: bytes) -> bytes | None:
    """Payload of the frame that begins at ``offset``, or None if there is no whole valid one."""
    if offset + HEAD.size > len(data):
        return None
    found, length, crc = HEAD.unpack_from(data, offset)
    end = offset + HEAD.size + length
    if found != marker or length > MAX_PAYLOAD or end > len(data):
        return None
    payload = bytes(data[offset + HEAD.size : end])
    return payload if zlib.crc32(payload, zlib.crc32(HEAD.pack(marker, length, 0))) == crc else None


def frames(data: bytes, start: int, marker: bytes) -> Iterator[tuple[int, bytes | None]]:
    """(offset, payload) of each valid frame from ``start``; (offset, None) begins a damaged stretch.

    The last item may be such a stretch: it then reaches to the end of ``data`` (a torn tail, or a
    frame that is still being written).
    """
    offset = start
    while offset < len(data):
        payload = frame_at(data, offset, marker)
        if payload is not None:
            yield offset, payload
            offset += HEAD.size + len(payload)
            continue
        yield offset, None
        offset = data.find(marker, offset + 1)
        while offset >= 0 and frame_at(data, offset, marker) is None:
            offset = data.find(marker, offset + 1)
        if offset < 0:
            return


class Compacted(KbError):
    """The generation that was being read is gone: another process has compacted the log."""


def close_all(writer: dict[Path, int], readers: dict[tuple[str, int], tuple[Segment, int]]) -> None:
    for handle in (*writer.values(), *(handle for _, handle in readers.values())):
        os.close(handle)
    writer.clear()
    readers.clear()


def read_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Log:
    """One log in a folder, shared by any number of processes.

    ``sync``: ``record`` fsyncs every append, ``batch`` every :meth:`flush` and new segment,
    ``none`` leaves it to the operating system (a kill loses nothing; a power cut may).
    An append is acknowledged when :meth:`append` returns.
    """

    def __init__(self, folder: Path, sync: str = "batch", segment_bytes: int = 64 << 20) -> None:
        if sync not in ("record", "batch", "none"):
            raise KbError(f"sync must be record, batch or none, not {sync!r}")
        self.folder = folder
        self.sync = sync
        self.segment_bytes = segment_bytes
        self.cut: list[Damage] = []
        self._tail: tuple[Path, int] | None = None  # last segment and its known valid end
        self._writer: dict[Path, int] = {}  # open descriptor of the last segment
        self._readers: dict[tuple[str, int], tuple[Segment, int]] = {}  # by generation and number
        weakref.finalize(self, close_all, self._writer, self._readers)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KbError(f"cannot create {folder}: {error.strerror}; choose another folder") from error

    # -- generations and segments ------------------------------------------------------------

    @property
    def generation(self) -> str:
        """Name of the generation folder in use."""
        try:
            return (self.folder / "CURRENT").read_text().strip() or "gen-000001"
        except FileNotFoundError:
            return "gen-000001"

    def segments(self, generation: str | None = None) -> list[Segment]:
        """The segments of a generation (the one in use unless named), in order of writing."""
        folder = self.folder / (generation or self.generation)
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                number, _, marker = name.partition("-")
                if name.endswith(".seg") and number.isdigit():
                    found.append(Segment(int(number), bytes.fromhex(marker[:-4]), folder / name))
        return sorted(found, key=lambda item: item.number)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The one writer lock; released by the kernel if its holder dies."""
        handle = os.open(self.folder / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _new_segment(self, number: int, generation: str) -> Segment:
        folder = self.folder / generation
        folder.mkdir(parents=True, exist_ok=True)
        marker = secrets.token_bytes(8)
        path = folder / f"{number:06d}-{marker.hex()}.seg"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        sync_folder(folder)
        return Segment(number, marker, path)

    # -- writing -----------------------------------------------------------------------------

    def append(self, payloads: Sequence[bytes]) -> list[Position]:
        """Append payloads as one batch; returns where each one stands.

        Raises:
            KbError: if the disk is full or the folder cannot be written; nothing is then half kept.
        """
        for payload in payloads:
            if len(payload) > MAX_PAYLOAD:
                raise KbError(f"an entry of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
        try:
            with self.locked():
                return self._append(payloads)
        except OSError as error:  # a new segment, or the room for a torn tail
            raise KbError(
                f"cannot append to {self.folder}: {error.strerror}; free space, nothing was lost"
            ) from error

    def _append(self, payloads: Sequence[bytes]) -> list[Position]:
        segment, end = self._valid_end()
        if end >= self.segment_bytes:
            segment, end = self._new_segment(segment.number + 1, self.generation), 0
        positions, blob, offset = [], bytearray(), end
        for payload in payloads:
            positions.append(Position(segment.number, offset))
            piece = frame(segment.marker, payload)
            blob += piece
            offset += len(piece)
        self._write_at(segment, bytes(blob), end)
        self._tail = (segment.path, end + len(blob))
        return positions

    def _descriptor(self, path: Path) -> int:
        if path not in self._writer:
            self._close_writer()
            self._writer[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return self._writer[path]

    def _write_at(self, segment: Segment, blob: bytes, end: int) -> None:
        handle = self._descriptor(segment.path)
        try:
            done = 0
            while done < len(blob):
                done += os.pwrite(handle, blob[done:], end + done)
            if self.sync == "record":
                os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, end)
            raise KbError(
                f"cannot append to {segment.path}: {error.strerror}; free space, nothing was lost"
            ) from error

    def _valid_end(self) -> tuple[Segment, int]:
        """Last segment and its valid end, with a torn tail moved away; needs the lock."""
        segments = self.segments()
        segment = segments[-1] if segments else self._new_segment(1, self.generation)
        size = segment.path.stat().st_size
        known = self._tail[1] if self._tail is not None and self._tail[0] == segment.path else 0
        if size == known:
            return segment, size
        begin = known if known <= size else 0
        data = read_from(segment.path, begin)
        stretch = None
        for offset, payload in frames(data, 0, segment.marker):
            stretch = offset if payload is None else None
        if stretch is None:
            return segment, begin + len(data)
        self._cut_tail(segment, begin + stretch, data[stretch:])
        return segment, begin + stretch

    def _cut_tail(self, segment: Segment, end: int, rest: bytes) -> None:
        torn = self.folder / "torn"
        torn.mkdir(exist_ok=True)
        (torn / f"{self.generation}-{segment.number:06d}-{end}-{secrets.token_hex(4)}").write_bytes(rest)
        os.truncate(segment.path, end)
        self.cut.append(Damage(segment.number, end, len(rest), "tail"))

    def flush(self) -> None:
        """Make everything appended so far survive a power cut."""
        for handle in self._writer.values():
            os.fsync(handle)

    def _close_writer(self) -> None:
        close_all(self._writer, {})

    def release(self) -> None:
        """Give back what was opened for reading: the files of a replaced generation stay on disk till then."""
        close_all({}, self._readers)

    def close(self) -> None:
        """Give the descriptors back; the log opens them again when it is used."""
        close_all(self._writer, self._readers)

    # -- reading -----------------------------------------------------------------------------

    def scan(
        self,
        start: Position | None = None,
        damage: list[Damage] | None = None,
        generation: str | None = None,
    ) -> Iterator[tuple[Position, bytes]]:
        """Every valid payload from ``start`` on, in order of writing; what is skipped goes to ``damage``.

        Raises:
            Compacted: if the generation was replaced meanwhile; positions in it mean nothing any more.
        """
        name = generation or self.generation
        segments = self.segments(name)
        if not segments and name != self.generation:
            raise Compacted(f"{self.folder} was compacted meanwhile: read it again from the start")
        for segment in segments:
            if start is not None and segment.number < start.segment:
                continue
            begin = start.offset if start is not None and segment.number == start.segment else 0
            try:
                data = read_from(segment.path, begin)
            except FileNotFoundError as error:
                raise Compacted(f"{segment.path} is gone: read the log again from the start") from error
            bad: int | None = None
            for offset, payload in frames(data, 0, segment.marker):
                if bad is not None and damage is not None:
                    damage.append(Damage(segment.number, begin + bad, offset - bad, "middle"))
                bad = offset if payload is None else None
                if payload is not None:
                    yield Position(segment.number, begin + offset), payload
            if bad is not None and damage is not None:
                kind = "tail" if segment is segments[-1] else "middle"
                damage.append(Damage(segment.number, begin + bad, len(data) - bad, kind))

    def read(self, position: Position, generation: str | None = None) -> bytes:
        """The payload at a position of a generation (the one in use unless named).

        Raises:
            Compacted: if that generation is gone.
            KbError: if the entry is damaged.
        """
        segment, handle = self._reader(generation or self.generation, position.segment)
        head = os.pread(handle, HEAD.size, position.offset)
        if len(head) == HEAD.size:
            length = min(HEAD.unpack(head)[1], MAX_PAYLOAD)
            rest = os.pread(handle, length, position.offset + HEAD.size)
            payload = frame_at(head + rest, 0, segment.marker)
            if payload is not None:
                return payload
        raise KbError(f"entry at {position} cannot be read: run kb memory verify {self.folder.parent}")

    def hold(self, generation: str) -> None:
        """Open every segment of a generation, so that it stays readable after a compaction by others."""
        for segment in self.segments(generation):
            self._reader(generation, segment.number)

    def _reader(self, generation: str, number: int) -> tuple[Segment, int]:
        """A segment and an open descriptor of it, which outlives a compaction by others."""
        key = (generation, number)
        if key not in self._readers:
            found = {segment.number: segment for segment in self.segments(generation)}
            try:
                if number in found:
                    handle = os.open(found[number].path, os.O_RDONLY | os.O_CLOEXEC)
                    self._readers[key] = (found[number], handle)
            except FileNotFoundError:
                found = {}
            if number not in found:
                raise Compacted(
                    f"segment {number} of {self.folder / generation} is gone: open the memory again"
                )
        return self._readers[key]

    # -- compaction --------------------------------------------------------------------------

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Replace the whole log by ``payloads``: a new generation, then one rename. Needs the lock."""
        old = self.generation
        name = f"gen-{int(old.split('-')[1]) + 1:06d}"
        for folder in self.folder.glob("gen-*"):  # of compactions that were killed
            if folder.name != old:
                shutil.rmtree(folder, ignore_errors=True)
        number, segment, file = 1, self._new_segment(1, name), None
        try:
            file = segment.path.open("r+b")
            for payload in payloads:
                if file.tell() >= self.segment_bytes:
                    file.flush()
                    os.fsync(file.fileno())
                    file.close()
                    number += 1
                    segment = self._new_segment(number, name)
                    file = segment.path.open("r+b")
                file.write(frame(segment.marker, payload))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            raise KbError(f"cannot compact {self.folder}: {error.strerror}; the log is unchanged") from error
        finally:
            if file is not None:
                file.close()
        temporary = self.folder / "CURRENT.new"
        temporary.write_text(name + "\n")
        with temporary.open("rb") as marker:
            os.fsync(marker.fileno())
        os.replace(temporary, self.folder / "CURRENT")
        sync_folder(self.folder)
        self._close_writer()
        self._tail = None
        shutil.rmtree(self.folder / old, ignore_errors=True)
