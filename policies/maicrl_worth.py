"""What another knowledge base would have drawn, from the logged propensities alone: off-policy evaluation.

Each logged choice names its candidates with the exact chance each was drawn with, so that the choices
of another knowledge base can be weighed by how much likelier it was to make them: self-normalised
inverse propensity scoring (Horvitz & Thompson 1952; Swaminathan & Joachims 2015, NeurIPS 28). Plans
are taken as they were: what the model would have proposed otherwise is not answered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kb_env.types import Episode, Status
from memory.knowledge import Knowledge
from policies.maicrl_choice import believe, chances


@dataclass(frozen=True)
class Choice:
    """A logged draw: candidates with their logged predictions, which was drawn, and the log gain it led to.

    A technique that failed in all its tries led to a gain of 0: the program stayed as it was.
    """

    techniques: tuple[str, ...]
    predicted: tuple[float | None, ...]
    drawn: int
    propensity: float
    gain: float
    signature: str
    by: str
    place: tuple[str, str]


@dataclass(frozen=True)
class Worth:
    """Mean log gain of a draw, as logged and as estimated for a knowledge base. ``effective`` is how many
    even-weighted choices the weighted ones are worth; few make the estimate a guess."""

    logged: float
    estimated: float
    effective: float
    count: int


def choices_of(episode: Episode, start: float = 0.0) -> Iterator[Choice]:
    """The draws of an episode from the share ``start`` of its steps on, each with what came of it."""
    known = {episode.initial.key: 1.0}
    found: list[Choice] = []
    for step in episode.steps:
        parent = known.get(str(step.notes.get("base_key", "")))
        verified = step.status is Status.TIMED and step.after is not None and bool(step.speedup)
        if step.after is not None and verified:
            known[step.after.key] = step.speedup or 1.0
        if "technique" not in step.notes or parent is None or "stopped" in step.notes:
            continue  # the last: it was drawn, and nothing was left to try it with
        gain = math.log((step.speedup or parent) / parent) if verified else 0.0
        if "candidates" in step.notes:
            read = _read(episode, step.notes, gain)
            if read is not None and step.index >= start * len(episode.steps):
                found.append(read)
        elif found and verified:  # a repair that led to something in the end
            last = found.pop()
            found.append(replace(last, gain=gain))
    yield from found


def _read(episode: Episode, notes: Mapping[str, str | float], gain: float) -> Choice | None:
    """A choice from a step's notes; None if they hold none, as another version may have written them."""
    try:
        items = json.loads(str(notes["candidates"]))
        names = tuple(str(item["technique"]) for item in items)
        ratios = [item["predicted"] for item in items]
        drawn = names.index(str(notes["technique"]))
        return Choice(
            names,
            tuple(None if ratio is None else math.log(ratio) for ratio in ratios),
            drawn,
            float(items[drawn]["propensity"]),
            gain,
            str(notes["signature"]),
            str(notes["chosen_by"]),
            (episode.device, episode.source),
        )
    except (ValueError, KeyError, TypeError):
        return None


def worth(choices: Sequence[Choice], knowledge: Knowledge) -> Worth:
    """Estimate what draws by ``knowledge`` would have gained; NaN without choices."""
    if not choices:
        return Worth(math.nan, math.nan, 0.0, 0)
    weights, rng = [], np.random.default_rng(0)
    for item in choices:
        beliefs = [
            believe(knowledge.posterior(name, item.signature, *item.place), predicted)
            for name, predicted in zip(item.techniques, item.predicted, strict=True)
        ]
        likely = chances(beliefs, rng, item.by)
        weights.append(float(likely[item.drawn]) / item.propensity)
    gains, shares = np.array([item.gain for item in choices]), np.array(weights)
    return Worth(
        float(gains.mean()),
        float((shares * gains).sum() / shares.sum()),
        float(shares.sum() ** 2 / (shares**2).sum()),
        len(choices),
    )
