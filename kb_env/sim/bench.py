"""Counters of the bench cases: the plan at full size, some blocks of each grid run.

Inputs of a bench case are drawn once from a fixed seed and kept as a memory file; a modelled time
needs no secret. The counters depend on code, plan and engine alone and are kept in the store. What
the run wrote is compared at some places (spot.py).
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kb_env.evaluators import Prepared
from kb_env.plan import plan_digest
from kb_env.records import RecordError, pack, unpack
from kb_env.sim.client import Client, Failure
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.spot import (
    PICKS,
    WHOLE_BUDGET,
    Spots,
    SpotStore,
    independent,
    outputs_of,
    picks,
    spot_fault,
    work,
)
from kb_env.sim.verify import response_fault, tensor_bytes, tensor_of
from kb_env.sim.wire import Job, Layout, Piece, Request, close_all, freeze, memory_file, shared_map
from kb_env.store import Store
from kb_env.types import DTYPE_BYTES, Case, Fault, Status, Task, digest

if TYPE_CHECKING:
    from torch import Tensor

    from kb_env.numerics import Reference

BENCH_SEED = 20261201
#: Warp instructions of a sampled run to aim for, and the most it may take.
SAMPLE_TARGET = 3_000_000
BENCH_BUDGET = 300_000_000
#: Processor seconds of a sampled and of a whole run, and how much longer the clock may take for them.
BENCH_SECONDS, WHOLE_SECONDS = 60, 120
PATIENCE = 5
#: Float inputs with more elements than this in one case are tiled from a smaller normal draw.
DRAWN_ELEMENTS = 1 << 24
TILE = 1 << 20
#: Modules that turn counters into time: counters stay valid when they change.
_MODEL = ("model", "network", "traffic", "profile", "evaluator", "verify", "client")
#: Memory for kept inputs, in bytes.
KEPT_BYTES = 1 << 30


@dataclass(frozen=True)
class Counted:
    """Counters of one plan's launches, in order, and whether its outputs were compared."""

    launches: tuple[LaunchCounts, ...]
    checked: bool = False


@dataclass(frozen=True)
class Drawn:
    """Inputs of one bench case in a memory file, and positions of its outputs (pieces ``@NAME``)."""

    file: int
    pieces: tuple[Piece, ...]
    nbytes: int
    spots: Spots


@functools.cache
def engine_version() -> str:
    """Hash of everything that decides a counter: the text of this package but for its time model."""
    folder = Path(__file__).parent
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".h", ".cpp", ".c") and path.stem not in _MODEL
    )
    return digest(b"\0".join(p.read_bytes() for p in files))


class BenchInputs:
    """Input files of bench cases by task and case; the least recently used go first."""

    def __init__(self, store: Path) -> None:
        self._files: OrderedDict[tuple[str, str], Drawn] = OrderedDict()
        self._spots = SpotStore(store)
        self._lock = threading.Lock()

    def get(self, task: Task, case: Case, reference: Reference) -> Drawn:
        """The inputs of one bench case; the file is owned here."""
        key = (task.key, case.name)
        with self._lock:
            if key not in self._files:
                self._files[key] = self._make(task, case, reference)
                self._shrink()
            self._files.move_to_end(key)
            return self._files[key]

    def close(self) -> None:
        with self._lock:
            while self._files:
                close_all((self._files.popitem()[1].file,))

    def _make(self, task: Task, case: Case, reference: Reference) -> Drawn:
        drawn = [a for a in task.arguments if a.kind in ("input", "inout")]
        layout = Layout()
        pieces = layout.add({a.name: a.nbytes(case.sizes) for a in drawn})
        places = layout.add({f"@{a.name}": 8 * picks(a, case) for a in outputs_of(task)})
        total = layout.nbytes
        descriptor = memory_file(total)
        floats = all("float" in a.dtype for a in drawn)
        tiled = floats and sum(a.elements(case.sizes) for a in drawn) > DRAWN_ELEMENTS
        inputs: dict[str, Tensor] = {} if tiled else reference.inputs(case, BENCH_SEED, "cpu")
        with shared_map(descriptor, total) as view:
            for argument, piece in zip(drawn, pieces, strict=True):
                end = piece.offset + piece.nbytes
                if tiled:
                    view[piece.offset : end] = normal_bytes(argument.dtype, piece.nbytes, piece.offset)
                    inputs[argument.name] = tensor_of(
                        view[piece.offset : end], argument.dtype, argument.dims(case.sizes)
                    )
                else:
                    view[piece.offset : end] = tensor_bytes(inputs[argument.name])
            spots = self._spots.get(task, case, reference, inputs, f"{BENCH_SEED} {TILE} {PICKS}")
            for piece in places:
                data = spots.positions[piece.name[1:]].tobytes()
                view[piece.offset : piece.offset + piece.nbytes] = data
        freeze(descriptor)
        return Drawn(descriptor, (*pieces, *places), total, spots)

    def _shrink(self) -> None:
        while len(self._files) > 1 and sum(item.nbytes for item in self._files.values()) > KEPT_BYTES:
            close_all((self._files.popitem(last=False)[1].file,))


def normal_bytes(dtype: str, nbytes: int, salt: int) -> bytes:
    """``nbytes`` of normally distributed numbers: a tile of about a million, repeated."""
    draw = np.random.default_rng((BENCH_SEED, salt)).standard_normal(TILE, dtype=np.float32)
    if dtype == "bfloat16":  # the upper half of a float32
        tile = (draw.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        tile = draw.astype(dtype).tobytes()
    assert len(tile) == TILE * DTYPE_BYTES[dtype]
    return (tile * (nbytes // len(tile) + 1))[:nbytes]


class Counter:
    """Counters of bench plans, from memory, the store or a run."""

    def __init__(self, client: Client, inputs: BenchInputs, store: Path) -> None:
        self._client = client
        self._inputs = inputs
        self._store = Store(store)
        self._known: dict[str, Counted] = {}

    def count(
        self, prepared: Prepared, case: Case, reference: Reference, trusted: bool = False
    ) -> Counted | Fault:
        """Counters of one bench case; a Fault if its plan does not run, or its outputs are wrong.

        ``trusted``: the program's outputs were compared before, or are beyond doubt.
        """
        plan = prepared.plans[case.name]
        parts = (engine_version(), digest(prepared.ptx), plan_digest(plan), prepared.task.key, case.name)
        key = "sim-" + digest("\0".join((*parts, str(SAMPLE_TARGET))))
        found = self._known.get(key) or self._stored(key)
        if found is None or not (found.checked or trusted):
            ran = self._run(prepared, case, reference, trusted)
            if isinstance(ran, Fault):
                return ran
            found = ran
            self._store.write(key, {"counts": pack(found)})
        self._known[key] = found
        return found

    def _stored(self, key: str) -> Counted | None:
        files = self._store.read(key)
        if files is None or "counts" not in files:
            return None
        try:
            return unpack(Counted, files["counts"])
        except RecordError:
            return None  # written by another version

    def _run(self, prepared: Prepared, case: Case, reference: Reference, trusted: bool) -> Counted | Fault:
        drawn = self._inputs.get(prepared.task, case, reference)
        ran = self._ask(prepared, case, drawn, SAMPLE_TARGET, BENCH_BUDGET)
        if isinstance(ran, Fault):
            return ran
        launches, found = ran
        plan = prepared.plans[case.name]
        if trusted:
            return Counted(launches)
        task, whole = prepared.task, not independent(prepared.task, plan, launches)
        if whole:
            if work(launches) > WHOLE_BUDGET:
                return Fault(
                    Status.REFUSED,
                    "time",
                    f"{case.name}: blocks use one another's results, and the whole grid is too much work "
                    "for the simulator to check them: fewer steps, or a GPU",
                )
            again = self._ask(prepared, case, drawn, 0, WHOLE_BUDGET)
            if isinstance(again, Fault):
                return again
            found = again[1]
        fault = spot_fault(task, case, plan, launches, drawn.spots, found, whole)
        return Counted(launches, checked=True) if fault is None else fault

    def _ask(
        self, prepared: Prepared, case: Case, drawn: Drawn, sample: int, budget: int
    ) -> tuple[tuple[LaunchCounts, ...], dict[str, bytes]] | Fault:
        """Counters and the outputs at the spots, after running part of each grid (``sample``) or all."""
        task, plan, layout = prepared.task, prepared.plans[case.name], Layout()
        wanted = layout.add({a.name: DTYPE_BYTES[a.dtype] * picks(a, case) for a in outputs_of(task)})
        job = Job(plan, drawn.pieces, wanted, -1, sample, budget)
        total = max(layout.nbytes, 1)
        seconds = BENCH_SECONDS if sample else WHOLE_SECONDS
        request = Request(2, prepared.ptx, drawn.nbytes, total, seconds, (job,))
        target = memory_file(total)
        try:
            response = self._client.ask(request, (drawn.file, target), float(PATIENCE * seconds))
            fault = response_fault(response, (case,), "time")
            if fault is not None:
                return fault
            assert not isinstance(response, Failure)
            with shared_map(target, total) as view:
                found = {p.name: bytes(view[p.offset : p.offset + p.nbytes]) for p in wanted}
        finally:
            close_all((target,))
        launches = response.results[0].counts
        if [c.kernel for c in launches] != [launch.kernel for launch in plan.launches]:
            return Fault(
                Status.CRASHED, "time", f"{case.name}: counters do not belong to the plan's launches"
            )
        return launches, found
