"""Cassettes: every answer by the hash of its request, so that a paid run can be repeated for nothing.

One JSON line an answer, appended and synced under a lock, so that several processes may record into
one file. A line that a kill cut off is dropped; its answer is asked for again.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from kb_env.types import KbError
from policies.budget import Usage
from policies.request import Answer, Order, Transport


def read_answers(path: Path) -> dict[str, Answer]:
    """Answers by their orders' keys; a last line without its end is left out.

    Raises:
        KbError: if another line is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KbError(f"cannot read the cassette {path}: {error.strerror}") from error
    found: dict[str, Answer] = {}
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        try:
            item = json.loads(line)
            answer = Answer(str(item["text"]), str(item["finish"]), Usage(**item["usage"]))
            found.setdefault(str(item["key"]), answer)
        except (ValueError, KeyError, TypeError) as error:
            raise KbError(f"{path}:{number} is damaged ({error}): delete that line") from error
    return found


def append(path: Path, line: bytes) -> None:
    """Add a whole line, after taking away what a kill left of another."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            mend(file.fileno())
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise KbError(f"cannot write the cassette {path}: {error.strerror}; free space") from error


def mend(handle: int) -> None:
    """Truncate a file to its last line end. The caller holds its lock."""
    size = os.fstat(handle).st_size
    end = size
    while end > 0:
        start = max(0, end - 65_536)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(handle, end)


class Cassette:
    """Answers that were recorded; what is not there is asked of ``source`` and recorded, or refused.

    ``source`` makes the transport when it is first needed: a full cassette needs no key and no server.
    """

    def __init__(self, path: Path, source: Callable[[], Transport] | None = None) -> None:
        self.path = path
        self._make = source
        self._source: Transport | None = None
        self._lock = threading.Lock()
        self._known = read_answers(path)

    def complete(self, order: Order) -> Answer:
        known = self._known.get(order.key)
        if known is not None:
            return known
        answer = self._live().complete(order)
        facts = {"key": order.key, "text": answer.text, "finish": answer.finish, "usage": vars(answer.usage)}
        with self._lock:
            append(self.path, json.dumps(facts).encode())
            self._known[order.key] = answer
        return answer

    def _live(self) -> Transport:
        if self._make is None:
            raise KbError(f"{self.path} holds no answer to this request: record it, without --replay")
        with self._lock:
            if self._source is None:
                self._source = self._make()
            return self._source
