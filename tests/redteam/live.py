"""Shows that the exploits are live: each is accepted once the control that names it is off.

The switches are made here and nowhere else; no command of the package has them. An exploit without a
switch says why in its line `// live: no, ...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments.bench_redteam import Candidate, Result, run_all
from kb_env.gpu.controls import Controls
from kb_env.gpu.evaluator import GpuEvaluator
from kb_env.types import Status


def loose(candidate: Candidate) -> Controls:
    """All controls but those the exploit names, and fewer pairs: nothing is published from these runs."""
    return replace(Controls(min_pairs=12, max_pairs=12), **dict.fromkeys(candidate.switches, False))


def verdict(candidate: Candidate, result: Result) -> str:
    """``live``, or what is missing: it was not accepted, or it earned less than it says."""
    if result.status != Status.TIMED.value:
        return "not accepted"
    if candidate.gain is not None and (result.speedup_low is None or result.speedup_low < candidate.gain):
        return "no gain"
    return "live"


def show(gpu: GpuEvaluator, candidates: Sequence[Candidate], builders: int) -> list[Result]:
    """Results of all exploits with a switch, each measured with its own control off."""
    strict = gpu.controls
    chosen = [item for item in candidates if item.switches]

    def before(candidate: Candidate) -> None:
        gpu.controls = loose(candidate)

    try:
        found = list(run_all(gpu, chosen, builders, before))
    finally:
        gpu.controls = strict
    return [replace(r, verdict=verdict(c, r)) for c, r in zip(chosen, found, strict=True)]
