"""Evaluators by name, and why ``auto`` is what it is. Each is imported only when it is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import cast

from kb_env.evaluators import Evaluator
from kb_env.types import KbError

_NAMES = "auto, gpu, sim, sim:DEVICE, replay:FILE, spool:DIR"


def make_evaluator(
    backend: str = "auto",
    *,
    device: str | int | None = None,
    store: str | Path | None = None,
    record: str | Path | None = None,
    counters: bool = True,
) -> Evaluator:
    """An evaluator by name.

    Args:
        backend: ``auto`` (a GPU if one works, else the simulator), ``gpu``, ``sim``, ``sim:A100``
            (the GPU to model), ``replay:FILE`` or ``spool:DIR`` (see :mod:`kb_env.spool`).
        device: the GPU's number for ``gpu``, the GPU to model for ``sim``.
        store: folder of the build cache.
        record: file that every evaluation is appended to.
        counters: whether profiles on a GPU ask for hardware counters (seconds each); else they are static.

    Raises:
        KbError: if there is no such backend or it cannot work here.
    """
    kind, _, rest = choose(backend)[0].partition(":")
    folder = Path(store) if store is not None else None
    evaluator: Evaluator
    if kind == "replay":
        from kb_env.replay import ReplayEvaluator

        if not rest:
            raise KbError("name the recording: backend='replay:FILE'")
        evaluator = ReplayEvaluator(rest)
    elif kind == "spool":
        from kb_env.spool import SpoolEvaluator

        if not rest:
            raise KbError("name the folder: backend='spool:DIR'")
        evaluator = cast(Evaluator, SpoolEvaluator(rest))  # its device is known once a worker came
    elif kind == "sim":
        from kb_env.sim.evaluator import SimEvaluator

        evaluator = SimEvaluator(device=rest or str(device or "H200"), store=folder)
    else:
        index, obstacle = _index(rest or device), gpu_obstacle()
        if obstacle is not None:
            raise KbError(f"no GPU can be used: {obstacle}; --backend sim models one")
        from kb_env.gpu.evaluator import GpuEvaluator

        evaluator = GpuEvaluator(index=index, store=folder, counters=counters)
    if record is not None:
        from kb_env.replay import Recorder

        evaluator = Recorder(evaluator, record)
    return evaluator


def choose(backend: str) -> tuple[str, str]:
    """The backend that ``backend`` stands for, and the reason in one line.

    Raises:
        KbError: if there is none of that name.
    """
    kind = backend.partition(":")[0]
    if kind not in ("auto", "gpu", "sim", "replay", "spool"):
        raise KbError(f"no backend {backend!r}: use one of {_NAMES}")
    if backend != "auto":
        return backend, f"{backend}: asked for"
    obstacle = gpu_obstacle()
    if obstacle is None:
        return "gpu", "gpu: an NVIDIA GPU and cuda-bindings are here; times are measured"
    return "sim", f"sim: {obstacle}; times are modelled, not measured"


def explain(backend: str = "auto") -> str:
    """One line: which backend ``backend`` is on this machine, and why."""
    return choose(backend)[1]


def gpu_obstacle() -> str | None:
    """Why no GPU can be used here, or None. Starts no CUDA."""
    if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/nvidia0")):
        return "no NVIDIA GPU on this machine (no /dev/nvidia*)"
    try:
        found = importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        return "an NVIDIA GPU but no cuda-bindings (pip install 'kb-env[gpu]')"
    return None


def _index(device: str | int | None) -> int:
    if device is None:
        return 0
    if not str(device).isdigit():
        raise KbError(f"no GPU {device!r} on this machine: give its number, 0 for the first")
    return int(device)
