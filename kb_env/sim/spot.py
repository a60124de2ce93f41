"""Outputs of bench cases, checked at some places: what is timed must also be right.

A model needs only some blocks of a big grid, so that a program could leave out work at the timed sizes
unseen. Against that, outputs are compared at positions that nobody knows who has not read this
machine's store: drawn once for each task and case, with what the reference says there.

- A plan of one launch that reads nothing but inputs and has no global atomics: each block's results
  are its own, so what the blocks that ran wrote must be right, and their footprint, scaled to the
  grid, must cover the outputs.
- Any other plan is run as a whole, every position must be written and right. One that is too much
  work for that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kb_env.plan import Launch, LaunchPlan
from kb_env.sim.counts import LaunchCounts
from kb_env.store import Store
from kb_env.types import DTYPE_BYTES, Argument, Case, Fault, Status, Task, digest

if TYPE_CHECKING:  # torch takes seconds to import: only where results are computed
    from torch import Tensor

    from kb_env.numerics import Reference

#: Positions of each output, drawn with repetition.
PICKS = 1 << 17
#: What a position holds until it is written; a result that looks like this counts as not written.
POISON = 0x7E
#: Part of an output's sectors that the blocks that ran must stand for. The sample of an uneven grid errs.
COVERED = 0.75
SECTOR = 32
#: Warp instructions that running a whole plan may take.
WHOLE_BUDGET = 1_000_000_000


@dataclass(frozen=True)
class Spots:
    """Of each output: positions, what must be there, and by how much it may differ (integers: not at all)."""

    positions: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]
    bounds: Mapping[str, np.ndarray]


def outputs_of(task: Task) -> list[Argument]:
    """The arguments that are only written: what a program adds to an inout depends on all its blocks."""
    return [a for a in task.arguments if a.kind == "output"]


def picks(argument: Argument, case: Case) -> int:
    """How many positions of this output are looked at."""
    return min(PICKS, argument.elements(case.sizes))


class SpotStore:
    """Spots by task and case, computed once for a store."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)

    def get(
        self, task: Task, case: Case, reference: Reference, inputs: Mapping[str, Tensor], salt: str
    ) -> Spots:
        """The spots for these inputs; ``salt`` names the inputs."""
        key = "simspot-" + digest("\0".join((task.key, case.name, _version(), salt)))
        files = self._store.read(key)
        names = [a.name for a in outputs_of(task)]
        if files is None or not all(f"{name}.positions" in files for name in names):
            files = _computed(task, case, reference, inputs)
            self._store.write(key, files)
        kinds = {a.name: a.dtype for a in outputs_of(task)}
        return Spots(
            {name: np.frombuffer(files[f"{name}.positions"], np.int64) for name in names},
            {name: np.frombuffer(files[f"{name}.values"], _kept(kinds[name])) for name in names},
            {name: np.frombuffer(files[f"{name}.bounds"], np.float64) for name in names},
        )


def _version() -> str:
    """Hash of what decides values and bounds, beside the task."""
    folder = Path(__file__).parent
    return digest((folder / "spot.py").read_bytes() + (folder.parent / "numerics.py").read_bytes())


def _kept(dtype: str) -> str:
    return "float64" if "float" in dtype else "int64"


def _computed(task: Task, case: Case, reference: Reference, inputs: Mapping[str, Tensor]) -> dict[str, bytes]:
    expected = reference.expected(case, dict(inputs))
    rng = np.random.default_rng()  # from the system's entropy: the positions are no program's to know
    files = {}
    for argument in outputs_of(task):
        count = argument.elements(case.sizes)
        number = picks(argument, case)
        chosen = np.arange(count) if number == count else np.sort(rng.integers(0, count, number))
        values = expected.values[argument.name].reshape(-1)[chosen].numpy().astype(_kept(argument.dtype))
        bound = expected.bounds.get(argument.name)
        bounds = np.zeros(number) if bound is None else bound.reshape(-1)[chosen].numpy()
        files[f"{argument.name}.positions"] = chosen.astype(np.int64).tobytes()
        files[f"{argument.name}.values"] = values.tobytes()
        files[f"{argument.name}.bounds"] = bounds.astype(np.float64).tobytes()
    return files


def independent(task: Task, plan: LaunchPlan, counts: Sequence[LaunchCounts]) -> bool:
    """Whether what a block writes depends on the inputs alone, not on what other blocks did."""
    if len(plan.operations) != 1 or not isinstance(plan.operations[0], Launch):
        return False
    inputs = {a.name for a in task.arguments if a.kind == "input"}
    [only] = counts
    if only.atomic_requests - only.extra.get("shared_atomic_requests", 0.0) > 0:
        return False
    for index, (read, written) in only.footprint.items():
        buffer = plan.buffers[index]
        given = buffer.kind == "argument" and buffer.name in inputs
        if read and not given and not (buffer.kind == "symbol" and not written):
            return False
    return True


def work(counts: Sequence[LaunchCounts]) -> float:
    """Warp instructions of the whole plan."""
    return sum(sum(c.warp_instructions.values()) * c.blocks_total / max(c.blocks_run, 1) for c in counts)


def uncovered(task: Task, case: Case, plan: LaunchPlan, counts: Sequence[LaunchCounts]) -> str | None:
    """Says so if the blocks that ran, scaled to the grid, cannot have filled the outputs.

    Both their footprint and the bytes they store must reach: few elements in many sectors do not fill it.
    """
    [only] = counts
    scale = only.blocks_total / max(only.blocks_run, 1)
    total = 0.0
    for argument in outputs_of(task):
        nbytes = argument.nbytes(case.sizes)
        total += nbytes
        for index, buffer in enumerate(plan.buffers):
            if buffer.kind == "argument" and buffer.name == argument.name:
                filled = only.footprint.get(index, (0, 0))[1] * scale * SECTOR / nbytes
                if filled < COVERED:
                    return _shortfall(filled, argument.name)
    stored = only.global_store_bytes * scale / total if total else 1.0
    return _shortfall(stored, "the outputs") if stored < COVERED else None


def _shortfall(share: float, what: str) -> str:
    return f"the grid writes about {share:.0%} of {what}: compute all of it at every size"


def wrong_spot(task: Task, spots: Spots, found: Mapping[str, bytes], whole: bool) -> str | None:
    """What differs from the reference, in words; ``whole``: every position must be written."""
    for argument in outputs_of(task):
        name, size = argument.name, DTYPE_BYTES[argument.dtype]
        raw = np.frombuffer(found[name], np.uint8).reshape(-1, size)
        written = ~(raw == POISON).all(axis=1)
        if whole and not written.all():
            return (
                f"{int((~written).sum())} of {len(written)} looked at elements of {name} were never written"
            )
        got, want, bound = _numbers(found[name], argument.dtype), spots.values[name], spots.bounds[name]
        with np.errstate(invalid="ignore"):
            same = (got == want) | (np.abs(got - want) <= bound) | (np.isnan(got) & np.isnan(want))
        bad = written & ~same
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            return (
                f"{name}[{spots.positions[name][first]}] is {got[first]:.9g}, not {want[first]:.9g}; "
                f"{int(bad.sum())} of {int(written.sum())} looked at elements are wrong at this size"
            )
    return None


def _numbers(data: bytes, dtype: str) -> np.ndarray:
    """Elements as float64 or int64."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    kind = np.uint8 if dtype == "bool" else np.dtype(dtype)
    return np.frombuffer(data, kind).astype(_kept(dtype))


def spot_fault(
    task: Task,
    case: Case,
    plan: LaunchPlan,
    counts: Sequence[LaunchCounts],
    spots: Spots,
    found: Mapping[str, bytes],
    whole: bool,
) -> Fault | None:
    """The verdict on one bench case's outputs."""
    message = wrong_spot(task, spots, found, whole)
    if message is None and not whole:
        message = uncovered(task, case, plan, counts)
    if message is None:
        return None
    sizes = ", ".join(f"{name} {value}" for name, value in case.sizes.items())
    return Fault(Status.WRONG, "time", f"{case.name} ({sizes}): {message}")
