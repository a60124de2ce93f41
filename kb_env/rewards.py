"""Reward functions: pure, one number out of what a step has come to.

All of them are in units of log speedup but ``roofline``. None pays for a measurement that may be
noise: ``gain``, ``terminal`` and ``roofline`` rest on the lower bound of a fresh measurement
paired against the best program so far. The environment calls none of them after a fault of its
own: such a step earns 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kb_env.types import KbError, Status

#: What a failed step costs.
FAILURE_COST = 0.02
#: Gains whose lower bound is below this (log) are not told from noise and make no new best.
SMALLEST_GAIN = 0.01

_FAILED = (
    Status.BAD_EDIT,
    Status.BUILD_FAILED,
    Status.REFUSED,
    Status.CRASHED,
    Status.TIMED_OUT,
    Status.WRONG,
)


@dataclass(frozen=True)
class Outcome:
    """What a reward may depend on.

    ``current_*`` is the speedup of the program that is edited, against initial (None if it was not
    timed); ``best_low_*`` the lower bound of the best program's, the product of the lower bounds of
    the paired measurements that made it the best. ``roofline`` is the initial program's share of the
    roofline (0 to 1, or None if not known). ``ended`` says that this step ended the episode.
    """

    status: Status
    current_before: float | None
    current_after: float | None
    best_low_before: float
    best_low_after: float
    roofline: float | None
    ended: bool

    @property
    def failed(self) -> bool:
        return self.status in _FAILED


Reward = Callable[[Outcome], float]


def gain(outcome: Outcome) -> float:
    """Log of the confirmed gain over the best so far, else 0; a small cost for a failed step."""
    if outcome.failed:
        return -FAILURE_COST
    return math.log(outcome.best_low_after / outcome.best_low_before)


def delta(outcome: Outcome) -> float:
    """Log speedup of the program after the step over the one before, also where it is slower.

    It rests on single measurements; their noise cancels over an episode, but not in one step.
    """
    if outcome.failed:
        return -FAILURE_COST
    if outcome.current_before is None or outcome.current_after is None:
        return 0.0
    return math.log(outcome.current_after / outcome.current_before)


def terminal(outcome: Outcome) -> float:
    """Nothing until the episode ends, then the log of the best confirmed speedup."""
    return math.log(outcome.best_low_after) if outcome.ended else 0.0


def roofline(outcome: Outcome) -> float:
    """Share of the roofline gained (0 to 1), by the confirmed speedup; 0 where it is not known."""
    if outcome.failed:
        return -FAILURE_COST
    if outcome.roofline is None:
        return 0.0
    return outcome.roofline * (outcome.best_low_after - outcome.best_low_before)


REWARDS: Mapping[str, Reward] = {
    "gain": gain,
    "delta": delta,
    "terminal": terminal,
    "roofline": roofline,
}


def find_reward(reward: str | Reward) -> Reward:
    """A reward function by name, or the function itself."""
    if callable(reward):
        return reward
    if reward not in REWARDS:
        raise KbError(f"no reward {reward!r}: use one of {', '.join(REWARDS)} or a function of an Outcome")
    return REWARDS[reward]
