"""Moves: the catalogue's transforms on one program, and experience of what they gain."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kb_env.files import write_atomic
from kb_env.transforms import CATALOGUE, applicable
from kb_env.types import Episode, KbError, StepRecord, Task


@dataclass(frozen=True)
class Move:
    """One applicable transform: which, and the text it gives."""

    name: str
    variant: int
    technique: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.name}:{self.variant}"


def moves(text: str) -> list[Move]:
    """All moves from ``text`` in catalogue order, without those that give the same text again."""
    found: dict[str, Move] = {}
    for position, variant in applicable(text):
        transform = CATALOGUE[position]
        result = transform.apply(text, variant)
        if result is not None and result not in found:
            found[result] = Move(transform.name, variant, transform.technique, result)
    return list(found.values())


@dataclass(frozen=True)
class Belief:
    """What is known of a move's or technique's gain: the mean log speedup over ``count`` tries."""

    mean: float
    count: float

    def updated(self, gain: float) -> Belief:
        return Belief(self.mean + (gain - self.mean) / (self.count + 1), self.count + 1)


class MoveMemory(Protocol):
    """A memory that a search policy can ask and tell; the memory package provides one."""

    def recall(self, task: Task, observation: Mapping[str, Any]) -> Mapping[str, Belief]:
        """Beliefs by technique for situations like this one."""
        ...

    def remember(self, task: Task, record: StepRecord) -> None:
        """Keep one finished step."""
        ...


#: A step that failed counts as this log gain: it cost a step and gave nothing.
FAILED_GAIN = -0.1


def outcomes(episode: Episode, start: int = 0) -> Iterator[tuple[StepRecord, float | None]]:
    """Each step from ``start`` on with its log gain over the program it edited; None where it failed.

    An edit's parent is the step's ``base_key`` note where the policy left one, else the program before.
    """
    known = {episode.initial.key: 1.0}
    for index, step in enumerate(episode.steps):
        parent = known.get(str(step.notes.get("base_key", step.before.key)))
        if step.after is not None and step.speedup is not None and step.speedup > 0:
            known[step.after.key] = step.speedup
        if index >= start:
            gained = step.speedup is not None and step.speedup > 0 and parent is not None
            yield step, math.log((step.speedup or 1.0) / (parent or 1.0)) if gained else None


def read_beliefs(path: Path) -> dict[str, Belief]:
    """Beliefs written by :func:`write_beliefs`.

    Raises:
        KbError: if the file is missing or not such a file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): Belief(float(mean), float(count)) for key, (mean, count) in content.items()}
    except FileNotFoundError as error:
        raise KbError(f"nothing to load at {path}: save the policy there first") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise KbError(f"{path} does not hold beliefs ({error}): delete it and learn again") from error


def write_beliefs(path: Path, beliefs: Mapping[str, Belief]) -> None:
    content = {key: [belief.mean, belief.count] for key, belief in beliefs.items()}
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True).encode())
