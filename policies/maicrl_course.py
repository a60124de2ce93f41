"""Where ``maicrl`` stands in its episode: trajectories from one start, and the state after each step.

States are numbers from measurements: a program, its profile and its speedup. A slower program is
gone on from, since it may prepare a faster one, unless it falls far behind its trajectory's best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kb_env.types import Episode, Profile, Program, Status, StepRecord

#: A program this many times slower than its trajectory's best is left for that best.
LEFT_BEHIND = 2.0


@dataclass(frozen=True)
class Point:
    """A verified program, what was measured of it, and its speedup over the task's initial one."""

    program: Program
    profile: Profile | None
    speedup: float


class Course:
    """``count`` trajectories of equal length over ``steps`` steps, all from the episode's first program."""

    def __init__(self, history: Episode, profile: Profile | None, steps: int, count: int) -> None:
        first = history.initial_evaluation
        profile = first.profile if first is not None else profile
        speedup = (first.speedup if first is not None else None) or 1.0
        self.start = self.here = self.top = Point(history.initial, profile, speedup)
        self.count = max(1, count)
        self.length = math.ceil(steps / self.count)
        self.number = self.taken = 0

    @property
    def spent(self) -> bool:
        """Whether the trajectory has used up its steps."""
        return self.taken >= self.length

    def restart(self) -> bool:
        """Begin the next trajectory at the start; False if the last one is over."""
        self.number, self.taken = self.number + 1, 0
        self.here = self.top = self.start
        return self.number < self.count

    def advance(self, step: StepRecord) -> float | None:
        """Go to where a step led; its log gain over the program it edited, or None if it failed."""
        if step.status is not Status.TIMED or step.after is None or not step.speedup:
            return None
        gain = math.log(step.speedup / self.here.speedup)
        profile = step.evaluation.profile if step.evaluation is not None else None
        self.here = Point(step.after, profile, step.speedup)
        if step.speedup >= self.top.speedup:
            self.top = self.here
        elif step.speedup * LEFT_BEHIND < self.top.speedup:
            self.here = self.top
        return gain
