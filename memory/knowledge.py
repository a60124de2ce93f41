"""The knowledge base: what each technique has gained, by bottleneck and GPU, with its doubt.

Per cell (signature x technique x GPU x source) it keeps the log gains of verified steps and the
number of failed ones. The source tells measured from modelled times: a modelled GPU counts as
another GPU than the real one of its name. A cell's posterior is shrunk to its parents: the same
technique and GPU under any signature that shares the limiter, the technique on this GPU, the
technique anywhere, all techniques. Everything is a function of the *set* of entries: order and
repetition change nothing (sums are exact, by ``math.fsum``), so a rebuilt or merged knowledge base
is equal to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kb_env.types import Status, digest
from memory.entries import Experience, Operation
from memory.operations import Operations
from memory.signature import parts, signature

#: How many observations a parent counts for when a cell is shrunk to it.
SHRINKAGE = 3.0
#: The root: a technique nobody has tried gains little on average, with this spread, and is
#: verified about this often.
ROOT_MEAN, ROOT_SPREAD, ROOT_VERIFIED = 0.02, 0.25, 0.6

#: Signature, technique, device, source.
Cell = tuple[str, str, str, str]


@dataclass
class Counts:
    """Sufficient statistics of one cell: gains, and pseudo-observations (weight, mean log gain)."""

    gains: list[float] = field(default_factory=list)
    failures: int = 0
    beliefs: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Posterior:
    """Belief about one technique in one situation. Gains are natural logs of speedups.

    ``mean`` and ``spread`` describe a verified attempt's gain, ``doubt`` is the standard error of
    ``mean``; ``verified`` the expected chance that an attempt is verified, from ``alpha``, ``beta``.
    """

    technique: str
    mean: float
    spread: float
    doubt: float
    alpha: float
    beta: float
    count: float
    failures: int

    @property
    def verified(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def score(self) -> float:
        """P(verified) x E[max(0, log gain)] at the posterior mean."""
        return self.verified * expected_gain(self.mean, math.hypot(self.spread, self.doubt))

    def sample(self, rng: np.random.Generator) -> float:
        """One Thompson draw of the same score (Thompson 1933; Russo et al. 2018, arXiv 1707.02038)."""
        chance = float(rng.beta(self.alpha, self.beta))
        return chance * expected_gain(float(rng.normal(self.mean, self.doubt)), self.spread)

    def log_density(self, gain: float | None) -> float:
        """Log predictive density of an outcome: failed (None), or verified with this log gain."""
        if gain is None:
            return math.log(1.0 - self.verified)
        scale = math.hypot(self.spread, self.doubt)
        return (
            math.log(self.verified)
            - 0.5 * ((gain - self.mean) / scale) ** 2
            - math.log(scale * math.sqrt(2 * math.pi))
        )


def expected_gain(mean: float, spread: float) -> float:
    """E[max(0, X)] of a normal X."""
    if spread <= 0.0:
        return max(0.0, mean)
    z = mean / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return spread * density + mean * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


@dataclass(frozen=True)
class Level:
    """Posterior of one level of the hierarchy: mean, variance of gains, weight, and Beta counts."""

    mean: float
    variance: float
    weight: float
    alpha: float
    beta: float


ROOT = Level(ROOT_MEAN, ROOT_SPREAD**2, 1.0, 2 * ROOT_VERIFIED, 2 * (1 - ROOT_VERIFIED))


def shrink(counts: Sequence[Counts], parent: Level) -> Level:
    """Combine the cells of one level with their parent, which counts for ``SHRINKAGE`` observations."""
    gains = sorted(gain for cell in counts for gain in cell.gains)
    beliefs = sorted(belief for cell in counts for belief in cell.beliefs)
    failures = sum(cell.failures for cell in counts)
    weight = len(gains) + math.fsum(item[0] for item in beliefs)
    total = math.fsum(gains) + math.fsum(count * value for count, value in beliefs)
    mean = (total + SHRINKAGE * parent.mean) / (weight + SHRINKAGE)
    squares = math.fsum((gain - mean) ** 2 for gain in gains)
    variance = (squares + SHRINKAGE * (parent.variance + (parent.mean - mean) ** 2)) / (
        len(gains) + SHRINKAGE
    )
    scale = SHRINKAGE / (parent.alpha + parent.beta)
    alpha, beta = parent.alpha * scale + len(gains), parent.beta * scale + failures
    return Level(mean, variance, weight + SHRINKAGE, alpha, beta)


class Knowledge:
    """Rebuilt from entries by :meth:`add`; holds no state of its own besides them."""

    def __init__(self) -> None:
        self.operations = Operations()
        self._cells: dict[Cell, dict[str, float | None]] = {}
        self._bulk: dict[Cell, Counts] = {}
        self._cached: dict[Cell, Counts] | None = None
        self._by_technique: dict[str, list[tuple[Cell, Counts]]] = {}
        self._posteriors: dict[Cell, Posterior] = {}
        self._version = ""
        self._root_level: Level = ROOT

    # -- entries -------------------------------------------------------------------------------

    def add(self, entries: Iterable[Experience | Operation]) -> None:
        """Take entries in, in any order; entries already known change nothing."""
        for entry in entries:
            if isinstance(entry, Operation):
                self.operations.add(entry)
            elif entry.technique and entry.status != Status.UNRECORDED:
                cell = (signature(entry.profile), entry.technique, entry.device, entry.source)
                verified = entry.status == Status.TIMED and entry.gain is not None
                self._cells.setdefault(cell, {})[entry.id] = entry.gain if verified else None
        self._cached = None

    def outcomes(self, cells: dict[Cell, Counts]) -> None:
        """Set the outcomes that are kept elsewhere (the memory's rows), counted by cell already."""
        self._bulk = cells
        self._cached = None

    def live(self, kind: str | None = None) -> list[Operation]:
        """Operations that hold, oldest first."""
        return self.operations.live(kind)

    def history(self) -> list[Operation]:
        """Every operation ever made, superseded or not, oldest first."""
        return self.operations.history()

    # -- questions -----------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """Names all that the answers depend on: equal versions give equal answers."""
        counted = self._counts()
        if not self._version:
            cells = [
                (cell, sorted(counts.gains), counts.failures)
                for cell, counts in sorted(counted.items())
                if counts.gains or counts.failures
            ]
            self._version = digest(repr((cells, sorted(item.id for item in self.live()))))
        return self._version

    @property
    def techniques(self) -> tuple[str, ...]:
        """Every technique defined or tried, aliases resolved, in alphabetical order."""
        defined = {self.resolve(item.subject) for item in self.live("technique")}
        return tuple(sorted({cell[1] for cell in self._counts()} | defined))

    def guidance(self, technique: str) -> str:
        return self.operations.guidance(technique)

    def notes(self, technique: str | None = None, held: str | None = None) -> list[Operation]:
        """Live notes on a technique that apply to signature ``held`` (notes without one always do)."""
        return self.operations.notes(technique, held)

    def resolve(self, technique: str, held: str = "") -> str:
        """The name a technique goes by in signature ``held``, after aliases."""
        return self.operations.resolve(technique, held)

    def posterior(self, technique: str, held: str, device: str, source: str) -> Posterior:
        """Belief about ``technique`` for a program of signature ``held`` on ``device``.

        ``source`` is ``measured`` or ``modelled``: the times that the belief is about.
        """
        self._counts()  # forgets what was believed, where something has changed
        key = (held, technique, device, source)
        if key not in self._posteriors:
            self._posteriors[key] = self._believe(key)
        return self._posteriors[key]

    def _believe(self, cell: Cell) -> Posterior:
        held, technique, device, source = cell
        name, main = self.resolve(technique, held), parts(held)[0]
        mine = self._by_technique.get(name, [])
        here = [item for item in mine if item[0][2] in (device, "") and item[0][3] in (source, "")]
        chain = (
            [counts for _, counts in mine],
            [counts for _, counts in here],
            [counts for cell, counts in here if parts(cell[0])[0] in (main, "")],
            [counts for cell, counts in here if cell[0] == held],
        )
        level = self._root_level
        for counts in chain:
            level = shrink(counts, level)
        spread = math.sqrt(level.variance)
        last = chain[-1]
        return Posterior(
            name,
            level.mean,
            spread,
            spread / math.sqrt(level.weight),
            level.alpha,
            level.beta,
            sum(len(item.gains) for item in last),
            sum(item.failures for item in last),
        )

    def rank(
        self,
        held: str,
        device: str,
        source: str,
        techniques: Sequence[str] | None = None,
        rng: np.random.Generator | None = None,
    ) -> list[Posterior]:
        """Techniques, best first: by Thompson draws with ``rng``, by expected score without."""
        names = self.techniques if techniques is None else techniques
        names = sorted({self.resolve(name, held) for name in names})
        beliefs = [self.posterior(name, held, device, source) for name in names]
        keys = {item.technique: item.score if rng is None else item.sample(rng) for item in beliefs}
        return sorted(beliefs, key=lambda item: (-keys[item.technique], item.technique))

    def log_score(self, experiences: Iterable[Experience]) -> float:
        """Mean log predictive density over outcomes not necessarily known here; 0 for none."""
        scores = []
        for item in experiences:
            if not item.technique:
                continue
            gain = item.gain if item.status == Status.TIMED else None
            belief = self.posterior(item.technique, signature(item.profile), item.device, item.source)
            scores.append(belief.log_density(gain))
        return math.fsum(scores) / len(scores) if scores else 0.0

    def _counts(self) -> dict[Cell, Counts]:
        """All cells by resolved technique, and the root; made again when something has changed."""
        if self._cached is not None:
            return self._cached
        table: dict[Cell, Counts] = {}
        for (held, technique, device, source), tried in self._cells.items():
            counts = table.setdefault((held, self.resolve(technique, held), device, source), Counts())
            for gain in tried.values():
                if gain is None:
                    counts.failures += 1
                else:
                    counts.gains.append(gain)
        for (held, technique, device, source), known in self._bulk.items():
            counts = table.setdefault((held, self.resolve(technique, held), device, source), Counts())
            counts.gains += known.gains
            counts.failures += known.failures
        for item in self.live("belief"):
            name = self.resolve(item.subject, item.signature)
            cell = (item.signature, name, item.device, item.source)
            table.setdefault(cell, Counts()).beliefs.append((item.weight, item.value))
        self._cached, self._version, self._by_technique, self._posteriors = table, "", {}, {}
        for cell, counts in table.items():
            self._by_technique.setdefault(cell[1], []).append((cell, counts))
        # What is believed of one technique says nothing of the others: the root is of outcomes only.
        outcomes = [Counts(counts.gains, counts.failures) for counts in table.values()]
        self._root_level = shrink(outcomes, ROOT)
        return table
