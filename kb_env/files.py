"""Files that a crash leaves whole: the one way this project replaces a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kb_env.types import KbError


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` so that readers and a crash see the old or the new file, never a part.

    Missing folders are made.

    Raises:
        KbError: if it cannot be written; what was there before stays.
    """
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise KbError(
            f"cannot write {path}: {error.strerror}; free space or choose another folder"
        ) from error
