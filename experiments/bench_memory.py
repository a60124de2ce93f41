"""``kb bench memory``: recall, latency, memory and open time of the episodic memory, beside exact numpy.

Vectors are clustered like real ones (situations of one program differ little): unit vectors around
random centres. Everything is measured in one run, so that the ratios hold on any machine.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb_env.types import Profile
from memory.embed import DIMENSION, HashedEmbedder, to_bytes
from memory.entries import Experience, encode
from memory.index import VectorIndex
from memory.log import Log

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Args:
    """Measure the memory at several sizes."""

    sizes: str = "10000,100000"
    """comma-separated numbers of entries"""
    queries: int = 200
    """queries per size"""
    usearch: bool = True
    """measure usearch in the same run if it is installed"""
    json: bool = False
    """print one JSON object as the last line"""


def clustered(count: int, rng: np.random.Generator, per_centre: int = 20) -> Floats:
    """Unit vectors (count x DIMENSION), ``per_centre`` of them around each random centre."""
    centres = rng.normal(size=(max(1, count // per_centre), DIMENSION)).astype(np.float32)
    data = centres[rng.integers(0, len(centres), count)]
    data += 0.5 * rng.normal(size=data.shape).astype(np.float32)
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    return data


def experience(number: int, vector: Floats) -> Experience:
    """A realistic record that carries its vector."""
    profile = Profile("sim", dram_percent=float(number % 100), occupancy_percent=50.0)
    return Experience(
        "softmax", "softmax", "builtin", "float32", "H200", "modelled", "random", f"e{number // 10}", number % 10,
        f"{number:032x}", f"{number + 1:032x}", "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE", "tiling", "TIMED",
        0.1, 0.05, 0.15, 1.1, profile, "", 6.0, None, "", float(number), {}, to_bytes(vector), HashedEmbedder().version,
    )  # fmt: skip


def peak_gb() -> float:
    """Resident memory of this process now, in GB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e9


def timed(
    queries: Floats, ask: Callable[[Floats], NDArray[np.int64]]
) -> tuple[float, list[NDArray[np.int64]]]:
    """Median milliseconds a query, and the answers."""
    spent, found = [], []
    for query in queries:
        started = time.perf_counter()
        found.append(ask(query))
        spent.append(time.perf_counter() - started)
    return 1e3 * float(np.median(spent)), found


def recall(found: list[NDArray[np.int64]], truth: list[NDArray[np.int64]]) -> float:
    return float(
        np.mean([len(set(a.tolist()) & set(b.tolist())) / len(b) for a, b in zip(found, truth, strict=True)])
    )


def peer_usearch(data: Floats, queries: Floats, truth: list[NDArray[np.int64]]) -> dict[str, float]:
    """usearch on the same vectors; empty if it is not installed."""
    try:
        from usearch.index import Index
    except ImportError:
        return {}
    index = Index(ndim=DIMENSION, metric="ip", dtype="f32")
    started = time.perf_counter()
    index.add(np.arange(len(data)), data)
    built = time.perf_counter() - started
    spent, found = timed(queries, lambda query: np.asarray(index.search(query, 10).keys, np.int64))
    return {"usearch_query_ms": spent, "usearch_recall": recall(found, truth), "usearch_build_s": built}


def write_log(folder: Path, data: Floats) -> float:
    """Write all experiences; median milliseconds of an append of one entry without fsync (last 1,000)."""
    log = Log(folder / "log", sync="none")
    block = 2000
    bulk = max(0, len(data) - 1000)
    for start in range(0, bulk, block):
        stop = min(start + block, bulk)
        log.append([encode(experience(i, data[i])) for i in range(start, stop)])
    spent = []
    for number in range(bulk, len(data)):
        payload = encode(experience(number, data[number]))
        started = time.perf_counter()
        log.append([payload])
        spent.append(time.perf_counter() - started)
    log.close()
    return 1e3 * float(np.median(spent))


def measure(count: int, args: Args, folder: Path) -> dict[str, Any]:
    """All figures at one size."""
    rng = np.random.default_rng(count)
    data = clustered(count, rng)
    queries = data[rng.integers(0, count, args.queries)] + 0.3 * rng.normal(
        size=(args.queries, DIMENSION)
    ).astype(np.float32) / np.sqrt(DIMENSION)
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    exact_ms, truth = timed(queries, lambda query: np.argpartition(-(data @ query), 10)[:10])
    row: dict[str, Any] = {"entries": count, "exact_numpy_ms": exact_ms, "append_ms": write_log(folder, data)}
    index = VectorIndex(DIMENSION)
    allowed = np.ones(count, np.bool_)
    started = time.perf_counter()
    index.add(data)
    row["build_s"] = time.perf_counter() - started
    row["query_ms"], found = timed(queries, lambda query: index.search(query, 10, allowed)[0])
    row["recall"] = recall(found, truth)
    if args.usearch:
        row |= peer_usearch(data, queries, truth)
    return row


def reopened(folder: Path) -> dict[str, Any]:
    """Open time with a valid index and memory of a fresh process."""
    import subprocess

    script = (
        "import sys,time,json;from pathlib import Path;t=time.perf_counter();from memory.store import Memory;"
        "m=Memory(Path(sys.argv[1]));s=time.perf_counter()-t;from experiments.bench_memory import peak_gb;"
        "g=peak_gb();m.save_index();"
        "print(json.dumps({'open_s':s,'memory_gb':g,'index':m.info().index}))"
    )
    # The first opening rebuilds index and rows from the log alone and saves them; the second loads them.
    first = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    rebuilt = json.loads(first.stdout.splitlines()[-1])["open_s"]
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    return {"rebuild_s": rebuilt, **json.loads(done.stdout.splitlines()[-1])}


def main(args: Args) -> int:
    rows = []
    for count in map(int, args.sizes.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="kb-bench-"))
        try:
            row = measure(count, args, folder)
            rows.append(row | reopened(folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(
            "  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()),
            flush=True,
        )
    if args.json:
        print(json.dumps({"memory": rows}))
    return 0
