"""CUDA optimization as a Gymnasium environment.

Importing registers three ids and loads nothing heavy:

- ``kb/Cuda-v0``: measured on a GPU, sealed;
- ``kb/CudaSim-v0``: modelled on the CPU, deterministic;
- ``kb/CudaReplay-v0``: recorded evaluations, deterministic.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

__all__ = ["make", "register"]

_IDS = {"kb/Cuda-v0": "gpu", "kb/CudaSim-v0": "sim", "kb/CudaReplay-v0": "replay"}


def register() -> None:
    """Register the ids with Gymnasium; again is harmless."""
    for name, backend in _IDS.items():
        if name not in gym.registry:
            gym.register(
                id=name,
                entry_point="kb_env.env:CudaEnv",
                nondeterministic=backend == "gpu",
                kwargs={"backend": backend},
            )


def make(id: str = "auto", **kwargs: Any) -> gym.Env[dict[str, Any], str]:
    """An environment by id, or by what this machine has (``auto``: a GPU, else the simulator).

    ``kwargs`` are those of :class:`kb_env.env.CudaEnv`: ``task=`` or ``suite=`` and ``split=``,
    ``max_steps=``, ``reward=``, ...

    >>> env = kb_env.make("kb/CudaSim-v0", task="softmax")
    """
    if id == "auto":
        from kb_env.backends import choose

        id = "kb/Cuda-v0" if choose(kwargs.get("backend", "auto"))[0].startswith("gpu") else "kb/CudaSim-v0"
        if kwargs.get("backend") == "auto":
            del kwargs["backend"]
    return gym.make(id, **kwargs)


register()
