"""Hardware counters: a separate short runner under Nsight Compute replays the plan once.

The profile diagnoses; it never times. Counters need permission (on many machines root, or the
driver's NVreg_RestrictProfilingToAdminUsers=0); without it, or without ncu, the static profile stands.
"""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kb_env.evaluators import Prepared
from kb_env.gpu.bench import CANDIDATE, Bench, CandidateFault
from kb_env.gpu.process import Worker, WorkerDied, WorkerFailed, WorkerTimeout, clean_environment
from kb_env.gpu.protocol import Ready
from kb_env.types import Case, Profile, arithmetic

#: Launches of one call that are profiled; a longer chain is described by its first ones.
LAUNCHES = 12
START_SECONDS = 30.0
RUN_SECONDS = 60.0
END_SECONDS = 30.0

_TIME = "gpu__time_duration.sum"

#: Profile field -> metrics that may carry it, the first that the GPU has. All in percent.
_MEANS: dict[str, tuple[str, ...]] = {
    "dram_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    "l1_hit_percent": ("l1tex__t_sector_hit_rate.pct",),
    "sm_percent": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    # Without the packed half instructions that compilers route through the tensor pipe.
    "tensor_percent": (
        "sm__pipe_tensor_op_hmma_type_hmma_hgmma_qgmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "fp_percent": (
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    ),
    "issue_percent": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "branch_efficiency_percent": ("smsp__sass_average_branch_targets_threads_uniform.pct",),
    "registers": ("launch__registers_per_thread",),
    "shared_bytes": ("launch__shared_mem_per_block",),
    "grid_waves": ("launch__waves_per_multiprocessor",),
}

#: Profile field -> (summed numerators, summed denominators).
_RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sectors_per_request": (
        ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
        (
            "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
            "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        ),
    ),
    "bank_conflict_ways": (
        (
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        ),
        ("smsp__sass_inst_executed_op_shared_ld.sum", "smsp__sass_inst_executed_op_shared_st.sum"),
    ),
}
_BYTES = "dram__bytes.sum"


def known_metrics(ncu: str) -> frozenset[str]:
    """Base names of the counters this GPU has; empty where ncu cannot say. Takes about two seconds."""
    command = [ncu, "--query-metrics"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=clean_environment(), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    lines = [line.split() for line in done.stdout.splitlines()]
    return frozenset(words[0] for words in lines if words and "__" in words[0])


def choose_metrics(known: frozenset[str] | None = None) -> tuple[str, ...]:
    """The metrics to ask for, given the counters that exist (None: the first choices)."""

    def exists(metric: str) -> bool:
        return known is None or metric.startswith("launch__") or metric.split(".")[0] in known

    wanted = [_TIME, _BYTES]
    for options in _MEANS.values():
        wanted += [metric for metric in options if exists(metric)][:1]
    for numerators, denominators in _RATIOS.values():
        wanted += [*numerators, *denominators]
    return tuple(metric for metric in dict.fromkeys(wanted) if exists(metric))


class Ncu:
    """Profiles on one GPU. Remembers what this machine refuses, so that it is tried only once.

    ``metrics`` are the counters to ask for (default: those of the Profile).
    """

    def __init__(self, index: int, mirror: int, metrics: tuple[str, ...] | None = None) -> None:
        self._index = index
        self._mirror = mirror
        self._ncu = shutil.which("ncu")
        self._metrics = metrics or choose_metrics()
        self._asked = False

    def rows(
        self, make_bench: Callable[[Worker], Bench], prepared: Prepared, case: Case
    ) -> list[dict[str, float]]:
        """Raw counters of one replay of ``case``, one row a launch; empty where there are none."""
        return self._rows(self._ncu, make_bench, prepared, case) if self._ncu is not None else []

    def profile(
        self, make_bench: Callable[[Worker], Bench], prepared: Prepared, case: Case, static: Profile
    ) -> Profile:
        """``static`` with counters of one replay of ``case``; ``static`` itself where there are none.

        ``make_bench`` joins a runner to the oracle.
        """
        while self._ncu is not None:
            rows = self._rows(self._ncu, make_bench, prepared, case)
            if rows:
                return merge(rows, static, float(arithmetic(prepared.task.bytes_moved, case.sizes)))
            known = known_metrics(self._ncu) if not self._asked else frozenset()
            self._asked, self._metrics = True, choose_metrics(known)
            if not known:
                self._ncu = None  # no permission, or no counters: nothing changes while this process runs
        return static

    def _rows(
        self, ncu: str, make_bench: Callable[[Worker], Bench], prepared: Prepared, case: Case
    ) -> list[dict[str, float]]:
        with tempfile.TemporaryDirectory(prefix="kb-env-ncu-") as folder:
            log = Path(folder) / "ncu.csv"
            prefix = (
                ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
                "--print-units", "base", "--launch-count", str(LAUNCHES), "--log-file", str(log),
                "--metrics", ",".join(self._metrics),
            )  # fmt: skip
            runner = Worker("kb_env.gpu.runner", self._index, self._mirror, prefix)
            bench = make_bench(runner)
            try:
                _replay(runner, bench, prepared, case)
            finally:
                bench.close()
                runner.kill()
            return read_csv(log.read_text(errors="replace")) if log.exists() else []


def _replay(runner: Worker, bench: Bench, prepared: Prepared, case: Case) -> None:
    """One replay under the profiler; what goes wrong shows as a log without rows."""
    try:
        runner.expect(Ready, START_SECONDS)
        bench.open(prepared.task, prepared, None)
        bench.load(CANDIDATE, prepared)
        bench.content(case)
        bench.run(CANDIDATE, case, RUN_SECONDS, profile=True)
        bench.end_runner()
    except (WorkerDied, WorkerFailed, WorkerTimeout, CandidateFault):
        return
    runner.wait(END_SECONDS)


def read_csv(text: str) -> list[dict[str, float]]:
    """Rows of ncu's raw CSV page as numbers by metric, one a profiled launch.

    Lines before the header, such as progress messages, and the row of units are skipped.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = []
    for row in csv.DictReader(lines[first:]):
        if (row.get("ID") or "").isdigit():
            rows.append({k: _number(v) for k, v in row.items() if k and "__" in k})
    return rows


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan


def merge(rows: Sequence[Mapping[str, float]], static: Profile, floor_bytes: float) -> Profile:
    """One profile of a call: means weighted by each launch's time, ratios of sums over the launches."""
    times = [row.get(_TIME, math.nan) for row in rows]
    if not rows or not all(math.isfinite(t) and t > 0 for t in times):
        return static
    found: dict[str, float] = {}
    for field, options in _MEANS.items():
        for metric in options:
            values = [row.get(metric, math.nan) for row in rows]
            if all(math.isfinite(v) for v in values):
                found[field] = sum(v * t for v, t in zip(values, times, strict=True)) / sum(times)
                break
    for field, (numerators, denominators) in _RATIOS.items():
        below = _total(rows, denominators)
        if below > 0:
            found[field] = _total(rows, numerators) / below
    if found.get("branch_efficiency_percent") == 0:
        del found["branch_efficiency_percent"]  # ncu says 0 where there is no branch
    moved = _total(rows, (_BYTES,))
    if moved > 0 and floor_bytes > 0:
        found["bytes_over_floor"] = moved / floor_bytes
    return replace(static, source="ncu", **found)


def _total(rows: Sequence[Mapping[str, float]], metrics: Sequence[str]) -> float:
    values = [row.get(metric, math.nan) for row in rows for metric in metrics]
    return sum(v for v in values if math.isfinite(v))
