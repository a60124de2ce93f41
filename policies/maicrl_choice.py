"""How ``maicrl`` chooses a technique: by chance, with the chances written down.

What the knowledge base believes, what the model predicts and what the episode has shown so far are
put together into one belief per proposed technique. The choice is drawn by Thompson sampling
(Thompson 1933; Russo et al. 2018, arXiv 1707.02038) or from softmax weights, never greedily. Every
candidate's propensity, the exact chance with which it was drawn, is kept: without it nothing can be
said later about choices that were not made (Horvitz & Thompson 1952; Bottou et al. 2013, arXiv
1209.2355).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.knowledge import Posterior, expected_gain

#: The model's prediction counts for this many observations of a gain.
PREDICTION_WEIGHT = 1.0
#: This share of all choices is drawn evenly, so that no proposed technique has a propensity of zero.
EVENLY = 0.02
#: Thompson draws that propensities are counted from; the choice is drawn from the counted shares.
DRAWS = 400
#: Softmax: a difference in expected log gain that makes a technique e times as likely.
TEMPERATURE = 0.1


@dataclass(frozen=True)
class Proposal:
    """A technique the model proposes. ``predicted`` is a natural log gain, None without a prediction."""

    technique: str
    why: str = ""
    predicted: float | None = None
    #: what the technique is, where the model has just made it up
    guidance: str = ""


@dataclass(frozen=True)
class Candidate:
    """A proposal with the belief it was weighed by and its propensity."""

    proposal: Proposal
    belief: Posterior
    propensity: float = 0.0

    def facts(self) -> dict[str, Any]:
        """What is logged of every candidate; gains are ratios, as people speak of them."""
        predicted = self.proposal.predicted
        return {
            "technique": self.proposal.technique,
            "propensity": self.propensity,
            "predicted": None if predicted is None else round(math.exp(predicted), 4),
            "believed": round(math.exp(self.belief.mean), 4),
            "verified": round(self.belief.verified, 4),
        }


def believe(prior: Posterior, predicted: float | None, shown: Sequence[float | None] = ()) -> Posterior:
    """The prior after a model's prediction and this episode's own outcomes (None: the try failed)."""
    gains = [gain for gain in shown if gain is not None]
    pieces = [(1.0, gain) for gain in gains]
    if predicted is not None:
        pieces.append((PREDICTION_WEIGHT, predicted))
    held = (prior.spread / max(prior.doubt, 1e-9)) ** 2
    weight = held + math.fsum(part for part, _ in pieces)
    mean = (held * prior.mean + math.fsum(part * gain for part, gain in pieces)) / weight
    return replace(
        prior,
        mean=mean,
        doubt=prior.spread / math.sqrt(weight),
        alpha=prior.alpha + len(gains),
        beta=prior.beta + len(shown) - len(gains),
    )


def thompson_shares(beliefs: Sequence[Posterior], rng: np.random.Generator) -> NDArray[np.float64]:
    """How often each belief wins among :data:`DRAWS` Thompson draws of all of them."""
    draws = np.empty((DRAWS, len(beliefs)))
    for column, item in enumerate(beliefs):
        chance = rng.beta(item.alpha, item.beta, DRAWS)
        means = rng.normal(item.mean, item.doubt, DRAWS)
        draws[:, column] = chance * [expected_gain(float(mean), item.spread) for mean in means]
    return np.bincount(draws.argmax(axis=1), minlength=len(beliefs)) / DRAWS


def softmax_shares(beliefs: Sequence[Posterior]) -> NDArray[np.float64]:
    weights = np.array([item.score for item in beliefs]) / TEMPERATURE
    raised = np.exp(weights - weights.max())
    shares: NDArray[np.float64] = raised / raised.sum()
    return shares


def chances(beliefs: Sequence[Posterior], rng: np.random.Generator, by: str) -> NDArray[np.float64]:
    """The chance of each to be drawn; they add up to one, and none is zero."""
    shares = thompson_shares(beliefs, rng) if by == "thompson" else softmax_shares(beliefs)
    found: NDArray[np.float64] = (1.0 - EVENLY) * shares + EVENLY / len(beliefs)
    return found / found.sum()


def choose(
    candidates: Sequence[Candidate], rng: np.random.Generator, by: str = "thompson"
) -> tuple[Candidate, list[Candidate]]:
    """The drawn candidate, and all of them with their propensities, which add up to one."""
    found = chances([item.belief for item in candidates], rng, by)
    weighed = [replace(item, propensity=float(p)) for item, p in zip(candidates, found, strict=True)]
    return weighed[int(rng.choice(len(weighed), p=found))], weighed


def log_of(candidates: Sequence[Candidate]) -> str:
    """All candidates as one line for a step's notes."""
    return json.dumps([item.facts() for item in candidates])


def read_log(text: str) -> dict[str, float]:
    """Propensity by technique out of a step's note; ValueError if it is no such note."""
    return {str(item["technique"]): float(item["propensity"]) for item in json.loads(text)}
