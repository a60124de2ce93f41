"""Shared test settings: GPU tests are skipped, with the reason, where there is no GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def gpu_reason() -> str | None:
    """Why GPU tests cannot run here, or None if they can."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU on this machine (/dev/nvidiactl is missing)"
    if shutil.which("nvcc") is None:
        return "nvcc is not on the PATH"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = gpu_reason()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build store shared by one test session."""
    return tmp_path_factory.mktemp("store")
