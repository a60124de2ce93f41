"""A population of verified programs: islands, each a grid of cells that keep their best.

Islands as in FunSearch (Romera-Paredes et al. 2023, Nature 625) and AlphaEvolve (Novikov et al. 2025, arXiv
2506.13131): they evolve apart, and from time to time the worst half starts again from the best of the
others. Cells as in MAP-Elites (Mouret and Clune 2015, arXiv 1504.04909): a program competes with those
alone that behave like it, here those that the same thing limits according to their profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kb_env.types import Profile, Program
from memory.signature import signature


@dataclass(frozen=True)
class Elite:
    """A verified program with its speedup over the initial one and its profile."""

    program: Program
    speedup: float
    profile: Profile | None

    @property
    def cell(self) -> str:
        """What limits it, and whether it uses shared memory: its place in the grid."""
        held = signature(self.profile)
        shared = self.profile is not None and self.profile.shared_bytes > 0
        return f"{held}, shared memory" if shared else held


class Population:
    """``islands`` grids that all hold the first elite; ``heat`` is the softmax temperature over log speedups."""

    def __init__(self, first: Elite, islands: int, heat: float) -> None:
        self.islands: list[dict[str, Elite]] = [{first.cell: first} for _ in range(islands)]
        self.heat = heat

    def add(self, island: int, elite: Elite) -> bool:
        """Put an elite into its cell if that is empty or holds a slower one; whether it is in."""
        grid = self.islands[island]
        held = grid.get(elite.cell)
        if held is not None and held.speedup >= elite.speedup:
            return False
        grid[elite.cell] = elite
        return True

    def pick(self, island: int, rng: np.random.Generator) -> Elite:
        """A parent: cells alike in speed are equally likely, faster ones more so."""
        return draw(list(self.islands[island].values()), self.heat, rng)

    def mate(self, island: int, parent: Elite, rng: np.random.Generator) -> Elite | None:
        """Another program to cross the parent with: from another cell of its island, else another island."""
        own = [item for item in self.islands[island].values() if item.program != parent.program]
        others = [item for grid in self.islands for item in grid.values() if item.program != parent.program]
        found = own or others
        return draw(found, self.heat, rng) if found else None

    def best(self, island: int) -> Elite:
        return max(self.islands[island].values(), key=lambda item: item.speedup)

    def restart_worst(self, rng: np.random.Generator) -> list[int]:
        """The worst half of the islands starts again, each from the best of a better one; which ones did."""
        order = sorted(range(len(self.islands)), key=lambda place: self.best(place).speedup)
        half = len(order) // 2
        for place in order[:half]:
            donor = self.best(order[half:][int(rng.integers(len(order) - half))])
            self.islands[place] = {donor.cell: donor}
        return order[:half]

    def cells(self) -> dict[str, Elite]:
        """The best of each cell over all islands, fastest first."""
        found: dict[str, Elite] = {}
        for grid in self.islands:
            for cell, elite in grid.items():
                if cell not in found or elite.speedup > found[cell].speedup:
                    found[cell] = elite
        return dict(sorted(found.items(), key=lambda item: -item[1].speedup))


def draw(elites: Sequence[Elite], heat: float, rng: np.random.Generator) -> Elite:
    """One of the elites by a softmax over their log speedups."""
    logs = np.array([math.log(max(item.speedup, 1e-6)) for item in elites]) / heat
    weights = np.exp(logs - logs.max())
    return elites[int(rng.choice(len(elites), p=weights / weights.sum()))]
