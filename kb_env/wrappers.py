"""Wrappers for libraries that know numbers only: discrete actions, flat observations.

With both, PPO, DQN and MaskablePPO of public libraries run unmodified::

    env = FlatProfile(DiscreteEdits(kb_env.make("kb/CudaSim-v0", task="softmax")))
"""

from __future__ import annotations

import functools
import re
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from kb_env.edits import diff_action
from kb_env.env import CudaEnv
from kb_env.observe import SPEEDUP_CEILING
from kb_env.transforms import CATALOGUE, VARIANTS, applicable
from kb_env.types import PROFILE_NAMES, KbError

#: Every (transform, variant) of the catalogue, in order; the flat action after them is ``revert``.
PAIRS: tuple[tuple[int, int], ...] = tuple(
    (number, variant) for number, item in enumerate(CATALOGUE) for variant in range(item.variants)
)


class DiscreteEdits(gym.ActionWrapper[dict[str, Any], Any, str], RecordConstructorArgs):
    """Actions are the catalogue's transforms instead of text.

    Flat (default): ``Discrete``, one action per (transform, variant) and a last one, ``revert``.
    ``multi=True``: ``MultiDiscrete``, (transform or ``revert``, variant). The count is the same for
    every task. A transform that does not apply is a failed edit; ``action_masks()`` says which do.
    """

    def __init__(self, env: gym.Env[dict[str, Any], str], multi: bool = False) -> None:
        RecordConstructorArgs.__init__(self, multi=multi)
        gym.ActionWrapper.__init__(self, env)
        self.multi = multi
        self.action_space = (
            gym.spaces.MultiDiscrete([len(CATALOGUE) + 1, VARIANTS])
            if multi
            else gym.spaces.Discrete(len(PAIRS) + 1)
        )

    def action(self, action: Any) -> str:
        """The text of an action: blocks, ``revert``, or a sentence that is no edit."""
        number, variant = self._pair(action)
        if number == len(CATALOGUE):
            return "revert"
        transform = CATALOGUE[number]
        source = core(self).program.text
        after = transform.apply(source, variant)
        if after is None:
            return f"Transform {transform.name}, variant {variant}, does not apply to this program."
        return diff_action(source, after)

    def _pair(self, action: Any) -> tuple[int, int]:
        if self.multi:
            number, variant = (int(item) for item in action)
            return number, variant
        flat = int(action)
        if not 0 <= flat <= len(PAIRS):
            raise KbError(f"no action {flat}: there are {len(PAIRS) + 1}")
        return PAIRS[flat] if flat < len(PAIRS) else (len(CATALOGUE), 0)

    def action_masks(self) -> np.ndarray:
        """Which actions apply to the current program (bool).

        Flat: one entry an action. Multi: transforms and then variants, each by itself, as
        MaskablePPO wants them; a variant is on where some transform has it.
        """
        pairs = applicable(core(self).program.text)
        if not self.multi:
            possible = set(pairs)
            return np.array([pair in possible for pair in PAIRS] + [True])
        transforms = {number for number, _ in pairs} | {len(CATALOGUE)}
        variants = {variant for _, variant in pairs} | {0}
        return np.array(
            [number in transforms for number in range(len(CATALOGUE) + 1)]
            + [variant in variants for variant in range(VARIANTS)]
        )


#: What a program's text is counted for, as far as a flat observation sees it.
_COUNTED: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("kernels", r"__global__"),
        ("launches", r"<<<"),
        ("shared", r"__shared__"),
        ("barriers", r"__syncthreads"),
        ("restrict", r"__restrict__"),
        ("read_only_loads", r"__ldg"),
        ("unrolls", r"#pragma unroll"),
        ("launch_bounds", r"__launch_bounds__"),
        ("vectors", r"\b(?:float|int|double|uint)[248]\b"),
        ("shuffles", r"__shfl"),
        ("atomics", r"\batomic\w+\s*\("),
        ("loops", r"\b(?:for|while)\s*\("),
        ("branches", r"\bif\s*\("),
        ("constants", r"\bconstexpr\b|#define\b"),
        ("lines", r"\n"),
    )
)
#: Values of the first compile-time constants, by position: what tuning moves.
_CONSTANTS = 8
_CONSTANT = re.compile(r"(?:constexpr\s+\w+|#define)\s+\w+\s*=?\s*(\d{1,9})\b")

FLAT_NAMES: tuple[str, ...] = (
    *(f"profile_{name}" for name in PROFILE_NAMES),
    *(f"has_{name}" for name in PROFILE_NAMES),
    "log_speedup",
    "log_best_speedup",
    "steps_left",
    *(f"count_{name}" for name, _ in _COUNTED),
    *(f"constant_{number}" for number in range(_CONSTANTS)),
)
_CEILING = 64.0


class FlatProfile(gym.ObservationWrapper[np.ndarray, Any, dict[str, Any]], RecordConstructorArgs):
    """One float32 vector instead of the dictionary; :data:`FLAT_NAMES` names its entries.

    Profile values as log(1 + x), 0 or 1 for each that is present, log speedups, the share of steps
    left, counts in the source as log(1 + x), and the first constants as log2. All within +-64.
    """

    def __init__(self, env: gym.Env[dict[str, Any], Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gym.ObservationWrapper.__init__(self, env)
        self.observation_space = gym.spaces.Box(-_CEILING, _CEILING, (len(FLAT_NAMES),), np.float32)

    def observation(self, observation: dict[str, Any]) -> np.ndarray:
        """The vector of one observation."""
        steps = observation["steps_left"] / core(self).max_steps
        return np.concatenate(
            [
                np.log1p(observation["profile"]),
                observation["profile_mask"],
                _log_speedup(observation["speedup"]),
                _log_speedup(observation["best_speedup"]),
                steps,
                _source_features(observation["source"]),
            ]
        ).astype(np.float32)


def _log_speedup(value: np.ndarray) -> np.ndarray:
    """Log of a speedup; 0 where there is none (the observation shows 0 then)."""
    return np.where(value > 0, np.log(np.clip(value, 1 / SPEEDUP_CEILING, SPEEDUP_CEILING)), 0.0)


@functools.lru_cache(maxsize=1024)
def _source_features(source: str) -> tuple[float, ...]:
    counts = [float(np.log1p(len(pattern.findall(source)))) for _, pattern in _COUNTED]
    constants = [float(np.log2(1 + int(value))) for value in _CONSTANT.findall(source)[:_CONSTANTS]]
    return (*counts, *constants, *([0.0] * (_CONSTANTS - len(constants))))


def core(env: gym.Env[Any, Any]) -> CudaEnv:
    """The CudaEnv at the bottom of a stack of wrappers."""
    base = env.unwrapped
    if not isinstance(base, CudaEnv):
        raise KbError(f"{type(env).__name__} wraps a CudaEnv, not {type(base).__name__}")
    return base
