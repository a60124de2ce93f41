"""What filters and the knowledge base need of every experience, as growing columns of small numbers.

A million experiences fit in about 100 MB, and load in a second from the cache beside the index.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb_env.types import Status
from memory.entries import Experience, Filter, Holdout
from memory.knowledge import Cell, Counts
from memory.log import Position
from memory.signature import signature

COLUMNS = ("task", "family", "device", "status", "suite", "source", "episode", "technique", "signature")
_NUMBERS = [
    ("segment", "<i8"),
    ("offset", "<i8"),
    ("time", "<f8"),
    ("gain", "<f8"),
    ("alive", "?"),
    ("id", "<u8"),
]
ROW = np.dtype([*((name, "<i4") for name in COLUMNS), *_NUMBERS])


def short(key: str) -> int:
    """64 bits of a content hash: enough to find a row; whoever reads the entry checks the rest."""
    return int(key[:16], 16)


@dataclass
class Rows:
    """One row an experience, in order of the log. ``programs`` says where each program stands."""

    codes: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in COLUMNS})
    table: NDArray[Any] = field(default_factory=lambda: np.zeros(64, ROW))
    count: int = 0
    row_of: dict[int, int] = field(default_factory=dict)
    programs: dict[int, tuple[int, int]] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)

    def add(self, experience: Experience, key: str, position: Position) -> None:
        """Append an experience that is not known yet."""
        if self.count == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        facts = {name: getattr(experience, name, "") for name in COLUMNS} | {
            "signature": signature(experience.profile)
        }
        codes = [self.codes[name].setdefault(facts[name], len(self.codes[name])) for name in COLUMNS]
        verified = experience.status == Status.TIMED and experience.gain is not None
        gain = experience.gain if verified else math.nan
        number = short(key)
        alive = number not in self.forgotten
        self.table[self.count] = (
            *codes,
            position.segment,
            position.offset,
            experience.time,
            gain,
            alive,
            number,
        )
        self.row_of[number] = self.count
        self.count += 1

    def forget(self, key: str) -> None:
        """Take a row out of every answer, now or when it comes."""
        self.forgotten.add(short(key))
        row = self.row_of.get(short(key))
        if row is not None:
            self.table["alive"][row] = False

    def position(self, row: int) -> Position:
        return Position(int(self.table["segment"][row]), int(self.table["offset"][row]))

    def allowed(self, wanted: Filter, holdout: Holdout) -> NDArray[np.bool_]:
        """One flag a row: alive, wanted, and not held out."""
        rows = self.table[: self.count]
        mask: NDArray[np.bool_] = rows["alive"].copy()
        wishes = (
            ("task", wanted.tasks),
            ("family", wanted.families),
            ("device", wanted.devices),
            ("status", wanted.statuses),
            ("suite", wanted.suites),
            ("source", wanted.sources),
            ("episode", wanted.episodes),
        )
        for name, values in wishes:
            if values:
                mask &= self._among(name, values)
        bans = (
            ("task", holdout.tasks),
            ("family", holdout.families),
            ("device", holdout.devices),
            ("episode", holdout.episodes),
        )
        for name, values in bans:
            if values:
                mask &= ~self._among(name, values)
        if wanted.since is not None:
            mask &= rows["time"] >= wanted.since
        if wanted.until is not None:
            mask &= rows["time"] < wanted.until
        return mask

    def _among(self, name: str, values: Sequence[str]) -> NDArray[np.bool_]:
        codes = [self.codes[name][value] for value in values if value in self.codes[name]]
        return np.isin(self.table[name][: self.count], codes)

    def cells(self) -> dict[Cell, Counts]:
        """Outcomes of all live rows by (signature, technique, device, source), for the knowledge base."""
        rows = self.table[: self.count][self.table["alive"][: self.count]]
        columns = ("signature", "technique", "device", "source")
        names = [list(self.codes[column]) for column in columns]
        unrecorded = self.codes["status"].get(str(Status.UNRECORDED), -1)
        untold = self.codes["technique"].get("", -1)
        rows = rows[(rows["status"] != unrecorded) & (rows["technique"] != untold)]
        keys, which = np.unique(rows[list(columns)], return_inverse=True)
        table: dict[Cell, Counts] = {}
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(keys) + 1))
        for number, key in enumerate(keys):
            gains = rows["gain"][order[bounds[number] : bounds[number + 1]]]
            known = gains[np.isfinite(gains)]
            held, technique, device, source = (
                words[code] for words, code in zip(names, key.tolist(), strict=True)
            )
            table[held, technique, device, source] = Counts(
                [float(gain) for gain in known], int(len(gains) - len(known))
            )
        return table

    def places(self) -> dict[tuple[str, str], int]:
        """How many live experiences each (device, source) has; measured and modelled are never one."""
        rows = self.table[: self.count][self.table["alive"][: self.count]]
        devices, sources = list(self.codes["device"]), list(self.codes["source"])
        keys, counts = np.unique(rows[["device", "source"]], return_counts=True)
        return {
            (devices[device], sources[source]): int(count)
            for (device, source), count in zip(keys.tolist(), counts, strict=True)
        }

    # -- the cache -------------------------------------------------------------------------------

    def dump(self, operations: bytes) -> bytes:
        """Everything here, and the packed operations, as one blob."""
        out = io.BytesIO()
        np.savez(
            out,
            table=self.table[: self.count],
            codes=np.frombuffer(json.dumps({n: list(c) for n, c in self.codes.items()}).encode(), np.uint8),
            programs=np.array(list(self.programs), np.uint64),
            places=np.array(list(self.programs.values()), np.int64).reshape(-1, 2),
            forgotten=np.array(sorted(self.forgotten), np.uint64),
            operations=np.frombuffer(operations, np.uint8),
        )
        return out.getvalue()

    @staticmethod
    def restore(blob: bytes) -> tuple[Rows, bytes]:
        """The rows and packed operations of :meth:`dump`; ValueError or KeyError if it is no such blob."""
        with np.load(io.BytesIO(blob), allow_pickle=False) as data:
            table = data["table"]
            if table.dtype != ROW:
                raise ValueError("rows of another layout")
            codes = json.loads(data["codes"].tobytes())
            rows = Rows(
                {name: {value: i for i, value in enumerate(codes[name])} for name in COLUMNS},
                table,
                len(table),
                dict(zip(table["id"].tolist(), range(len(table)), strict=True)),
                dict(zip(data["programs"].tolist(), map(tuple, data["places"].tolist()), strict=True)),
                set(data["forgotten"].tolist()),
            )
            return rows, data["operations"].tobytes()
