"""Counters of the bench cases: the plan at full size, some blocks of each grid run.

Inputs of a bench case are drawn once from a fixed seed and kept as a memory file; a modelled time
needs no secret. The counters depend on code, plan and engine alone and are kept in the store.
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
from kb_env.sim.verify import response_fault, tensor_bytes
from kb_env.sim.wire import Job, Layout, Piece, Request, close_all, freeze, memory_file, shared_map
from kb_env.store import Store
from kb_env.types import DTYPE_BYTES, Case, Fault, Status, Task, digest

if TYPE_CHECKING:
    from kb_env.numerics import Reference

BENCH_SEED = 20261201
#: Warp instructions of a sampled run to aim for, and the most it may take.
SAMPLE_TARGET = 3_000_000
BENCH_BUDGET = 300_000_000
BENCH_SECONDS = 60.0
#: Float inputs with more elements than this in one case are tiled from a smaller normal draw.
DRAWN_ELEMENTS = 1 << 24
TILE = 1 << 20
#: Modules that turn counters into time: counters stay valid when they change.
_MODEL = ("model", "network", "traffic", "profile", "evaluator", "verify", "client")
#: Memory for kept inputs, in bytes.
KEPT_BYTES = 1 << 30


@dataclass(frozen=True)
class Counted:
    """Counters of one plan's launches, in order."""

    launches: tuple[LaunchCounts, ...]


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

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, str], tuple[int, tuple[Piece, ...], int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, task: Task, case: Case, reference: Reference) -> tuple[int, tuple[Piece, ...], int]:
        """Descriptor (owned here), pieces and size of the inputs of one bench case."""
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
                close_all((self._files.popitem()[1][0],))

    def _make(self, task: Task, case: Case, reference: Reference) -> tuple[int, tuple[Piece, ...], int]:
        drawn = [a for a in task.arguments if a.kind in ("input", "inout")]
        layout = Layout()
        pieces = layout.add({a.name: a.nbytes(case.sizes) for a in drawn})
        total = layout.nbytes
        descriptor = memory_file(total)
        floats = all("float" in a.dtype for a in drawn)
        tiled = floats and sum(a.elements(case.sizes) for a in drawn) > DRAWN_ELEMENTS
        inputs = {} if tiled else reference.inputs(case, BENCH_SEED, "cpu")
        with shared_map(descriptor, total) as view:
            for argument, piece in zip(drawn, pieces, strict=True):
                end = piece.offset + piece.nbytes
                if tiled:
                    view[piece.offset : end] = normal_bytes(argument.dtype, piece.nbytes, piece.offset)
                else:
                    view[piece.offset : end] = tensor_bytes(inputs[argument.name])
        freeze(descriptor)
        return descriptor, pieces, total

    def _shrink(self) -> None:
        while len(self._files) > 1 and sum(item[2] for item in self._files.values()) > KEPT_BYTES:
            close_all((self._files.popitem(last=False)[1][0],))


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

    def count(self, prepared: Prepared, case: Case, reference: Reference) -> Counted | Fault:
        plan = prepared.plans[case.name]
        parts = (engine_version(), digest(prepared.ptx), plan_digest(plan), prepared.task.key, case.name)
        key = "sim-" + digest("\0".join((*parts, str(SAMPLE_TARGET))))
        found = self._known.get(key) or self._stored(key)
        if found is None:
            ran = self._run(prepared, case, reference)
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

    def _run(self, prepared: Prepared, case: Case, reference: Reference) -> Counted | Fault:
        file, pieces, total = self._inputs.get(prepared.task, case, reference)
        job = Job(prepared.plans[case.name], pieces, (), -1, SAMPLE_TARGET, BENCH_BUDGET)
        request = Request(2, prepared.ptx, total, 1, int(BENCH_SECONDS), (job,))
        nothing = memory_file(1)
        try:
            response = self._client.ask(request, (file, nothing), BENCH_SECONDS)
        finally:
            close_all((nothing,))
        fault = response_fault(response, (case,), "time")
        if fault is not None:
            return fault
        assert not isinstance(response, Failure)
        launches = response.results[0].counts
        if [c.kernel for c in launches] != [launch.kernel for launch in prepared.plans[case.name].launches]:
            return Fault(
                Status.CRASHED, "time", f"{case.name}: counters do not belong to the plan's launches"
            )
        return Counted(launches)
