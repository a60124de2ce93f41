"""A queue of questions and answers in a folder: one file each, written whole.

What asks and what answers share nothing but the folder, may be many on either side, and may die at any
time. Layout::

    requests/NAME.SUFFIX   what is asked; equal questions have equal names, so nothing is asked twice
    claims/NAME            held by flock while somebody is at it, one byte per attempt
    ANSWERS/NAME.SUFFIX    the answer, kept

A killed worker's claim falls with its process. Used by kb_env/spool.py (evaluations) and
policies/files.py (questions to models or people).
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from kb_env.files import write_atomic
from kb_env.types import KbError


class FileQueue:
    """The folder's files; makes it, private to its owner, if it is not there.

    With ``trusted`` a folder that others may write to is refused: answers are believed.
    """

    suffix = "msgpack"
    answers = "results"
    trusted = True

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("requests", "claims", self.answers):
                (path / name).mkdir(exist_ok=True)
            open_to_others = path.stat().st_mode & 0o022
        except OSError as error:
            raise KbError(
                f"cannot use {path} as a queue of files: {error.strerror}; choose another folder"
            ) from error
        if open_to_others and self.trusted:
            raise KbError(f"others may write to {path}, and what it holds is trusted: chmod 700 {path}")

    def request_file(self, name: str) -> Path:
        return self.path / "requests" / f"{name}.{self.suffix}"

    def result_file(self, name: str) -> Path:
        return self.path / self.answers / f"{name}.{self.suffix}"

    def put(self, name: str, data: bytes) -> None:
        """Write a request if it is neither pending nor answered."""
        if not self.result_file(name).exists() and not self.request_file(name).exists():
            write_atomic(self.request_file(name), data)

    def done(self, name: str) -> None:
        """The request is answered: it is no longer pending."""
        self.request_file(name).unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        """Remove a request with its attempts and answer."""
        for path in (self.request_file(name), self.result_file(name), self.path / "claims" / name):
            path.unlink(missing_ok=True)

    def pending(self) -> list[str]:
        return sorted(path.stem for path in (self.path / "requests").glob(f"[!.]*.{self.suffix}"))

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[int | None]:
        """Hold a request; yields which attempt this is, or None if another worker has it."""
        with (self.path / "claims" / name).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            file.write(b".")
            file.flush()
            yield file.tell()
