"""The vector index: exact below 10,000 entries, hnswlib above. A cache, never the truth.

hnswlib loads damaged files silently or crashes the process, saves to a full disk without an error
and raises on k above the count. So a saved index stands beside a header with its size and CRC, is
written under a temporary name, is read back and compared before the header is renamed into place,
and is loaded only if every byte matches; anything else means: rebuild from the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray

from memory.embed import Vector

#: Below this many vectors a full matrix product is both exact and fast enough.
EXACT_LIMIT = 10_000


@dataclass(frozen=True)
class IndexHeader:
    """What a saved index was made of; it is used only if all of it matches."""

    count: int
    dimension: int
    space: str
    generation: str
    segment: int
    offset: int
    embedder: str
    nbytes: int
    crc: int
    file: str
    state_nbytes: int
    state_crc: int


def crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            crc = zlib.crc32(chunk, crc)
    return crc


class VectorIndex:
    """Unit vectors by row number, most similar first (cosine by inner product)."""

    def __init__(self, dimension: int, exact_limit: int = EXACT_LIMIT, threads: int = 2) -> None:
        self.dimension = dimension
        self.exact_limit = exact_limit
        self.threads = threads
        self.count = 0
        self._matrix = np.zeros((0, dimension), np.float32)
        self._graph: Any = None

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Append rows; their numbers are ``count``, ``count + 1``, ..."""
        first, total = self.count, self.count + len(vectors)
        if self._graph is None and total > self.exact_limit:
            self._graph = self._new_graph(max(total, 2 * self.exact_limit))
            self._insert(self._matrix[: self.count], 0)
            self._matrix = np.zeros((0, self.dimension), np.float32)
        if self._graph is not None:
            self._insert(vectors, first)
        else:
            if total > len(self._matrix):
                grown = np.zeros((max(total, 2 * len(self._matrix), 64), self.dimension), np.float32)
                grown[: self.count] = self._matrix[: self.count]
                self._matrix = grown
            self._matrix[first:total] = vectors
        self.count = total

    def _new_graph(self, capacity: int) -> Any:
        graph = hnswlib.Index(space="ip", dim=self.dimension)
        graph.init_index(max_elements=capacity, ef_construction=120, M=16, random_seed=1)
        graph.set_num_threads(self.threads)
        graph.set_ef(96)
        return graph

    def _insert(self, vectors: NDArray[np.float32], first: int) -> None:
        needed = first + len(vectors)
        if needed > self._graph.get_max_elements():
            self._graph.resize_index(max(needed, int(1.5 * self._graph.get_max_elements())))
        if len(vectors):
            self._graph.add_items(vectors, np.arange(first, needed), num_threads=self.threads)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._graph is None:
            return self._matrix[rows]
        return np.asarray(self._graph.get_items(rows), np.float32)

    def exact(
        self, query: Vector, rows: NDArray[np.int64], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k best of ``rows`` by a full product: the oracle of the approximate search."""
        if not len(rows) or k < 1:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        if self._graph is None and 4 * len(rows) > self.count:
            scores = (self._matrix[: self.count] @ query)[rows]  # cheaper than gathering most rows
        else:
            step = 1 << 15  # bounded memory however many rows
            pieces = [self.vectors(rows[start : start + step]) @ query for start in range(0, len(rows), step)]
            scores = np.concatenate(pieces)
        if k < len(rows):
            worst = np.partition(scores, len(rows) - k)[len(rows) - k]
            near = np.flatnonzero(scores >= worst)  # ties included, so that the order below is total
            rows, scores = rows[near], scores[near]
        top = np.lexsort((rows, -scores))[:k]
        return rows[top], scores[top]

    def search(
        self, query: Vector, k: int, allowed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Up to k rows for which ``allowed`` (one flag a row) holds, most similar first."""
        rows = np.flatnonzero(allowed[: self.count])
        if self._graph is None or len(rows) <= self.exact_limit:
            return self.exact(query, rows, k)
        accept: Callable[[int], bool] | None = None
        if len(rows) < self.count:
            accept = allowed.item
        wanted = min(k, len(rows))
        self._graph.set_ef(max(96, 4 * wanted))
        try:
            found, distance = self._graph.knn_query(query[None, :], k=wanted, num_threads=1, filter=accept)
        except RuntimeError:  # the filtered walk found fewer than k: the exact answer always exists
            return self.exact(query, rows, k)
        return found[0].astype(np.int64), 1.0 - distance[0]

    # -- the cache on disk ---------------------------------------------------------------------

    def save(
        self, folder: Path, generation: str, position: tuple[int, int], embedder: str, state: bytes
    ) -> bool:
        """Save vectors and ``state`` beside the log; False if that failed: an older cache stays in force."""
        name = f"index-{secrets.token_hex(6)}.bin"
        path, beside = folder / name, folder / f"{name}.state"
        try:
            if self._graph is not None:
                self._graph.save_index(str(path))
            else:
                path.write_bytes(self._matrix[: self.count].tobytes())
            beside.write_bytes(state)
            for item in (path, beside):
                with item.open("rb") as file:
                    os.fsync(file.fileno())
            # hnswlib does not notice a full disk.
            size = self.count * self.dimension * 4 if self._graph is None else self._graph.index_file_size()
            if path.stat().st_size != size or beside.stat().st_size != len(state):
                raise OSError("short write")
            header = IndexHeader(
                self.count, self.dimension, "ip", generation, *position, embedder, size, crc_of(path), name,
                len(state), zlib.crc32(state),
            )  # fmt: skip
            temporary = folder / f"{name}.json"
            facts = json.dumps(asdict(header))
            temporary.write_text(json.dumps({"header": facts, "crc": zlib.crc32(facts.encode())}))
            os.replace(temporary, folder / "index.json")
        except OSError:
            for item in (path, beside, folder / f"{name}.json"):
                item.unlink(missing_ok=True)
            return False
        for old in folder.glob("index-*.bin*"):
            if not old.name.startswith(name):
                with contextlib.suppress(FileNotFoundError):
                    old.unlink()
        return True

    def load(self, folder: Path, generation: str, embedder: str) -> tuple[IndexHeader, bytes] | None:
        """Fill from the cache if it matches to the last byte; returns its header and state, None: rebuild."""
        try:
            sealed = json.loads((folder / "index.json").read_text())
            if zlib.crc32(sealed["header"].encode()) != sealed["crc"]:
                return None  # a place in the log that is off would lose entries
            header = IndexHeader(**json.loads(sealed["header"]))
            path = folder / Path(header.file).name
            state = (folder / f"{path.name}.state").read_bytes()
            fits = (
                header.generation == generation
                and header.embedder == embedder
                and header.dimension == self.dimension
                and header.space == "ip"
                and (len(state), zlib.crc32(state)) == (header.state_nbytes, header.state_crc)
                and path.stat().st_size == header.nbytes
                and crc_of(path) == header.crc
            )
            if not fits:
                return None
            if header.count <= self.exact_limit:
                flat = np.frombuffer(path.read_bytes(), np.float32)
                self._matrix = flat.reshape(header.count, self.dimension).copy()
            else:
                graph = hnswlib.Index(space="ip", dim=self.dimension)
                graph.load_index(str(path), max_elements=int(1.1 * header.count) + 1000)
                if graph.get_current_count() != header.count:
                    return None
                graph.set_num_threads(self.threads)
                self._graph = graph
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
            return None
        self.count = header.count
        return header, state
