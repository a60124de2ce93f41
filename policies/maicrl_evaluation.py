"""Policy evaluation of ``maicrl``: where the knowledge base's predictions missed, from the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memory.entries import Experience
from memory.knowledge import Knowledge
from memory.signature import signature
from policies.maicrl_words import ratio

#: Share of each episode's steps that is shown to the model; the rest tests its operations.
SHOWN = 2 / 3
#: Worst and best cases told.
CASES = 4
#: A failed step counts as this log gain where cases are put in order.
FAILED_GAIN = -0.5


@dataclass(frozen=True)
class Miss:
    """One technique in one signature: ``count`` verified steps, mean log gains predicted and found.

    ``source`` says what the found ones are: ``measured`` or ``modelled``.
    """

    technique: str
    signature: str
    count: int
    failures: int
    predicted: float
    found: float
    believed: float
    source: str


def split_steps(experiences: Sequence[Experience]) -> tuple[list[Experience], list[Experience]]:
    """The earlier steps of each episode, which are shown, and its later ones, which test."""
    episodes: dict[str, list[Experience]] = {}
    for item in experiences:
        episodes.setdefault(item.episode, []).append(item)
    shown, later = [], []
    for _, items in sorted(episodes.items()):
        items.sort(key=lambda item: item.index)
        cut = math.ceil(SHOWN * len(items))
        shown += items[:cut]
        later += items[cut:]
    return shown, later


def evaluate(experiences: Sequence[Experience], knowledge: Knowledge) -> list[Miss]:
    """Policy evaluation, the largest misses first: predicted against found by technique and signature."""
    groups: dict[tuple[str, str, str, str], list[Experience]] = {}
    for item in experiences:
        held = signature(item.profile)
        name = knowledge.resolve(item.technique, held)
        groups.setdefault((name, held, item.device, item.source), []).append(item)
    misses = []
    for (name, held, device, source), items in groups.items():
        gains = [item.gain for item in items if item.gain is not None]
        foreseen = [item.predicted for item in items if item.predicted is not None]
        found = math.fsum(gains) / len(gains) if gains else math.nan
        predicted = math.fsum(foreseen) / len(foreseen) if foreseen else math.nan
        belief = knowledge.posterior(name, held, device, source)
        failures = len(items) - len(gains)
        misses.append(Miss(name, held, len(gains), failures, predicted, found, belief.mean, source))
    return sorted(misses, key=lambda miss: (-_size(miss), miss.technique, miss.signature))


def _size(miss: Miss) -> float:
    gap = miss.found - miss.predicted
    return abs(gap) if math.isfinite(gap) else abs(FAILED_GAIN) if not miss.count else 0.0


def miss_words(miss: Miss) -> str:
    predicted = "nothing" if math.isnan(miss.predicted) else f"{ratio(miss.predicted)} times"
    found = "none verified" if not miss.count else f"{ratio(miss.found)} times"
    return (
        f"- {miss.technique} in {miss.signature}: predicted {predicted}, {miss.source} {found} "
        f"({miss.count} verified, {miss.failures} failed); now believed {ratio(miss.believed)} times"
    )


def extremes(experiences: Sequence[Experience]) -> tuple[list[Experience], list[Experience]]:
    """The steps that came out worst and best against what was predicted, the most extreme first."""

    def surprise(item: Experience) -> float:
        gain = FAILED_GAIN if item.gain is None else item.gain
        return gain - (item.predicted or 0.0)

    order = sorted(experiences, key=lambda item: (surprise(item), item.id))
    count = min(CASES, (len(order) + 1) // 2)
    return order[:count], order[::-1][: min(count, len(order) - count)]
