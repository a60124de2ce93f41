"""A write-once store of small folders by key, shared by any number of processes.

An entry appears by one rename of a complete, fsynced temporary folder, so a reader sees all of it
or nothing, whenever a writer is killed. Every entry has a manifest with the hash of each file; a
read checks them, and an entry that does not match counts as absent and is removed, so that its
owner makes it again. The least recently read entries are evicted once the store outgrows its bound.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kb_env.types import KbError

MANIFEST = "manifest.json"
DEFAULT_LIMIT = 8 << 30
#: Temporary folders older than this many seconds belong to writers that were killed.
STALE_SECONDS = 3600.0
#: One write in this many looks at the size of the whole store.
CHECK_EVERY = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


def default_store() -> Path:
    """The folder used where no other is given."""
    return Path.home() / ".cache" / "kb-env"


@dataclass(frozen=True)
class StoreUsage:
    """What ``kb doctor`` shows: entries, their bytes, the bound, and left-over temporary folders."""

    folder: str
    entries: int
    nbytes: int
    limit: int
    temporary: int


class Store:
    """Entries of named files under ``folder``. Cheap to construct; creates nothing until a write."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._entries = self.folder / "entries"
        self._temporary = self.folder / "temporary"

    def _entry(self, key: str) -> Path:
        if not _NAME.fullmatch(key):
            raise KbError(f"{key!r} is no store key: use letters, digits, dot, dash and underscore")
        return self._entries / key[:2] / key

    def read(self, key: str) -> dict[str, bytes] | None:
        """Files of an entry by name, every hash checked; None if it is absent or was damaged."""
        entry = self._entry(key)
        try:
            manifest = json.loads((entry / MANIFEST).read_bytes())
            files = {name: (entry / name).read_bytes() for name in manifest}
            whole = all(_hash(data) == manifest[name] for name, data in files.items())
        except (FileNotFoundError, NotADirectoryError):
            whole = not entry.exists()
            files = {}
        except (ValueError, TypeError, AttributeError, OSError):
            whole = False
        if not whole:
            self._remove(entry)
            return None
        if not files:
            return None
        _touch(entry)
        return files

    def path(self, key: str, name: str) -> Path | None:
        """Path of one file of an entry after the same check (for programs that are executed)."""
        files = self.read(key)
        return self._entry(key) / name if files is not None and name in files else None

    def write(self, key: str, files: Mapping[str, bytes], executable: bool = False) -> None:
        """Add an entry; if another process was first, keep theirs.

        Raises:
            KbError: if the disk is full or the folder cannot be written. No partial entry remains.
        """
        entry = self._entry(key)
        for name in files:
            if not _NAME.fullmatch(name) or name == MANIFEST:
                raise KbError(f"{name!r} is no file name for a store entry")
        draft = self._temporary / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            draft.mkdir(parents=True)
            for name, data in files.items():
                _write_synced(draft / name, data, 0o755 if executable else 0o644)
            manifest = json.dumps({name: _hash(data) for name, data in files.items()}, sort_keys=True)
            _write_synced(draft / MANIFEST, manifest.encode(), 0o644)
            _sync_folder(draft)
            entry.parent.mkdir(parents=True, exist_ok=True)
            _publish(draft, entry)
            _sync_folder(entry.parent)
        except OSError as error:
            raise KbError(_explain(self.folder, error)) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if secrets.randbelow(CHECK_EVERY) == 0:
            self.shrink()

    def obtain(
        self, key: str, make: Callable[[], Mapping[str, bytes]], executable: bool = False
    ) -> dict[str, bytes]:
        """The entry's files; made and added first if it is absent."""
        files = self.read(key)
        if files is None:
            files = dict(make())
            self.write(key, files, executable)
        return files

    def shrink(self) -> None:
        """Evict least recently read entries until the store fits its bound; clear dead drafts."""
        now = time.time()
        for draft in _children(self._temporary):
            status = _stat(draft)
            if status is not None and now - status.st_mtime > STALE_SECONDS:
                shutil.rmtree(draft, ignore_errors=True)
        sizes = [(_last_read(entry), _size(entry), entry) for entry in self._all()]
        total = sum(size for _, size, _ in sizes)
        for _, size, entry in sorted(sizes, key=lambda item: item[0]):
            if total <= self.limit:
                break
            self._remove(entry)
            total -= size

    def usage(self) -> StoreUsage:
        entries = list(self._all())
        return StoreUsage(
            str(self.folder),
            len(entries),
            sum(map(_size, entries)),
            self.limit,
            sum(1 for _ in _children(self._temporary)),
        )

    def _all(self) -> Iterator[Path]:
        for group in _children(self._entries):
            yield from _children(group)

    def _remove(self, entry: Path) -> None:
        """Take an entry away in one rename, so that no reader meets half of it for long."""
        grave = self._temporary / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            entry.rename(grave)
        except OSError:
            return  # another process removed it, or the store is read-only: it stays unread
        shutil.rmtree(grave, ignore_errors=True)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(draft: Path, entry: Path) -> None:
    try:
        draft.rename(entry)
    except OSError as error:
        # Renaming a folder onto a non-empty one fails: another process was first, with equal content.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _touch(entry: Path) -> None:
    try:
        os.utime(entry / MANIFEST)
    except OSError:
        pass  # read-only or just evicted: only the order of eviction suffers


def _children(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _last_read(entry: Path) -> float:
    status = _stat(entry / MANIFEST)
    return 0.0 if status is None else status.st_mtime


def _size(entry: Path) -> int:
    statuses = (_stat(path) for path in _children(entry))
    return sum(status.st_size for status in statuses if status is not None)


def _explain(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for the store {folder}: free some, or choose another folder with --store"
    return f"cannot write the store {folder} ({error.strerror}): choose another folder with --store"
