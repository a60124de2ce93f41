"""Versions of what an episode's numbers depend on, for its record."""

from __future__ import annotations

import functools
import platform
from importlib import metadata


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for package in ("kb-env", "gymnasium", "numpy"):
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return tuple(found)


def versions() -> dict[str, str]:
    """Versions of Python, kb-env, gymnasium and numpy; a fresh dictionary."""
    return dict(_versions())
