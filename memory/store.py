"""The episodic memory: add what happened, recall what is similar, ask the knowledge base.

The log is the truth; rows, vectors and the knowledge base are rebuilt from it. Many processes may
add at once; each sees the others' entries after :meth:`Memory.refresh`. A *snapshot* is a memory
that does not refresh: rounds of rollouts read one while a single owner merges between rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kb_env.edits import diff_action
from kb_env.records import RecordError, from_plain, pack, unpack_plain
from kb_env.types import DTYPE_BYTES, Episode, Evaluation, KbError, Program, Status, StepRecord, Task, digest
from memory.embed import Embedder, HashedEmbedder, Vector, from_bytes, to_bytes
from memory.entries import (
    Entry,
    Experience,
    Filter,
    Forget,
    Holdout,
    Operation,
    Recollection,
    Situation,
    Stored,
    decode,
    encode,
    with_vector,
)
from memory.index import VectorIndex
from memory.knowledge import Knowledge
from memory.log import HEAD, Compacted, Damage, Log, Position
from memory.rows import Rows, short

#: A saved index older than this many entries is saved again on close.
SAVE_AFTER = 1000


@dataclass(frozen=True)
class Info:
    """What ``kb memory info`` and ``verify`` report."""

    experiences: int
    programs: int
    operations: int
    forgotten: int
    log_bytes: int
    index: str
    damage: tuple[Damage, ...]
    unreadable: int


def task_scale(task: Task) -> float:
    """log10 of the elements of all arguments in the first bench case."""
    sizes = task.bench[0].sizes
    total = sum(
        argument.nbytes(sizes) / DTYPE_BYTES[argument.dtype] for argument in task.arguments if argument.shape
    )
    return math.log10(max(1.0, total))


class Memory:
    """An episodic memory in a folder.

    Args:
        folder: made if missing; holds ``log/`` and the index cache.
        embedder: vectors of another embedder found in the log are made anew.
        sync: fsync policy of the log (``record``, ``batch`` or ``none``).
        frozen: never refresh, never write: a snapshot for rollouts.
        holdout: experiences that this reader must not see in any form, the knowledge base included.
            A program that only held-out steps refer to stays unreachable, since nothing names it.
    """

    def __init__(
        self,
        folder: Path,
        embedder: Embedder | None = None,
        sync: str = "batch",
        frozen: bool = False,
        holdout: Holdout = Holdout(),
    ) -> None:
        self.folder = Path(folder)
        self.embedder: Embedder = embedder or HashedEmbedder()
        self.log = Log(self.folder / "log", sync)
        self.frozen = frozen or holdout != Holdout()
        self.holdout = holdout
        self._reset()
        self._up_to_date(self._load)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reset(self) -> None:
        self.rows = Rows()
        self.index = VectorIndex(self.embedder.dimension)
        self.damage: list[Damage] = []
        self.unreadable = 0
        self._generation = self.log.generation
        self.log.release()
        self._next: Position | None = None
        self._operations: dict[str, Operation] = {}
        self._knowledge: Knowledge | None = None
        self._saved = 0
        self._index_state = "rebuilt"

    @property
    def knowledge(self) -> Knowledge:
        """The knowledge base as of the last refresh."""
        if self._knowledge is None:
            self._knowledge = Knowledge()
            self._knowledge.add(item for item in self._operations.values() if self._may_know(item))
            self._knowledge.outcomes(self.rows.cells())
        return self._knowledge

    def _may_know(self, operation: Operation) -> bool:
        """Under a hold-out: the starter set, and what was learned from episodes that this reader sees."""
        if self.holdout == Holdout() or operation.provenance == ("starter",):
            return True
        seen = self.rows.codes["episode"]
        return bool(operation.provenance) and all(key in seen for key in operation.provenance)

    # -- reading the log -----------------------------------------------------------------------

    def _load(self) -> None:
        if self.holdout == Holdout():  # the cache numbers all rows, this reader only some
            found = self.index.load(self.folder, self._generation, self.embedder.version)
            if found is not None:
                header, state = found
                try:
                    self.rows, packed = Rows.restore(state)
                    operations = [from_plain(Operation, item) for item in unpack_plain(packed)]
                except (ValueError, KeyError, TypeError):
                    self._reset()
                else:
                    self._operations = {item.id: item for item in operations}
                    self._next = Position(header.segment, header.offset)
                    self._index_state, self._saved = "loaded", header.count
        self._read()
        if self.index.count != self.rows.count:  # rows and vectors of different moments
            self._reset()
            self._read()

    def refresh(self) -> None:
        """See what other processes have added since."""
        if not self.frozen:
            self._up_to_date(self._read)

    def _up_to_date(self, read: Callable[[], None]) -> None:
        """Read what is new; all of it, if the log is or was just compacted by somebody."""
        while True:
            if self.log.generation != self._generation:
                self._reset()
            try:
                read()
                # A compaction meanwhile may have removed segments before they were listed.
                if self.log.generation == self._generation:
                    if self.frozen:
                        self.log.hold(self._generation)
                    return
            except Compacted:
                if self.log.generation == self._generation:
                    raise

    def _read(self) -> None:
        vectors: list[Vector] = []
        damage: list[Damage] = []
        for position, payload in self.log.scan(self._next, damage, self._generation):
            self._next = Position(position.segment, position.offset + HEAD.size + len(payload))
            self._knowledge = None
            try:
                entry = decode(payload)
            except RecordError:
                self.unreadable += 1
                continue
            self._take(entry, position, vectors)
            if len(vectors) >= 4096:
                self.index.add(np.stack(vectors))
                vectors.clear()
        if vectors:
            self.index.add(np.stack(vectors))
        self.damage += [item for item in damage if item.kind == "middle"]

    def _take(self, entry: Entry, position: Position, vectors: list[Vector]) -> None:
        if isinstance(entry, Stored):
            self.rows.programs.setdefault(short(entry.id), (position.segment, position.offset))
        elif isinstance(entry, Forget):
            self.rows.forget(entry.target)
        elif isinstance(entry, Operation):
            self._operations[entry.id] = entry
        elif short(entry.id) not in self.rows.row_of and not self.holdout.hides(entry):
            self.rows.add(entry, entry.id, position)
            vectors.append(self._vector(entry))

    def _vector(self, entry: Experience) -> Vector:
        if entry.embedder == self.embedder.version:
            vector = from_bytes(entry.vector, self.embedder.dimension)
            if vector is not None:
                return vector
        program = self.program(entry.before)
        code = program.text if program is not None else ""
        place = Situation(code, entry.profile, entry.family, entry.dtype, entry.device, entry.scale)
        return self.embedder.embed(place)

    def program(self, key: str) -> Program | None:
        """A stored program by its key."""
        place = self.rows.programs.get(short(key))
        if place is None:
            return None
        try:
            entry = decode(self.log.read(Position(*place), self._generation))
        except Compacted:
            raise
        except (KbError, RecordError):  # damaged since it was read; kb memory verify tells
            return None
        return entry.program if isinstance(entry, Stored) and entry.id == key else None

    def experience(self, row: int) -> Experience:
        """The experience of a row; KbError if it was damaged since the log was read."""
        entry = decode(self.log.read(self.rows.position(row), self._generation))
        if not isinstance(entry, Experience):
            raise KbError(f"{self.folder} holds no experience at row {row}: delete index.json, it is a cache")
        return entry

    def _readable(self, row: int) -> Experience | None:
        """The experience of a row, or None and out of every later answer if it is damaged."""
        try:
            return self.experience(row)
        except Compacted:
            raise
        except (KbError, RecordError):
            self.rows.table["alive"][row] = False
            self.unreadable += 1
            return None

    def of_episodes(self, keys: Iterable[str]) -> list[Experience]:
        """The live experiences of these episodes, in order of the log."""
        names = tuple(keys)
        if not names:
            return []
        wanted = self.rows.allowed(Filter(episodes=names), Holdout())
        found = [self._readable(int(row)) for row in np.flatnonzero(wanted)]
        return [item for item in found if item is not None]

    def entries(self) -> Iterable[Entry]:
        """Every readable entry of the log, in order of writing."""
        for _, payload in self.log.scan(None, []):
            try:
                yield decode(payload)
            except RecordError:
                continue

    # -- writing -------------------------------------------------------------------------------

    def add(self, entries: Iterable[Entry]) -> int:
        """Append the entries not known yet; returns how many were new. Durable as ``sync`` says."""
        if self.frozen:
            raise RuntimeError("a frozen memory is read only: add to the memory it is a snapshot of")
        self.refresh()
        fresh: dict[tuple[str, str], Entry] = {}
        for entry in entries:
            key = (type(entry).__name__, entry.id)
            if key not in fresh and not self._known(entry):
                fresh[key] = entry
        if not fresh:
            return 0
        self.log.append([encode(self._embedded(entry, fresh)) for entry in fresh.values()])
        if self.log.sync == "batch":
            self.log.flush()
        self.refresh()
        return len(fresh)

    def _known(self, entry: Entry) -> bool:
        if isinstance(entry, Stored):
            return short(entry.id) in self.rows.programs
        if isinstance(entry, Forget):
            return short(entry.target) in self.rows.forgotten
        return (
            entry.id in self._operations
            if isinstance(entry, Operation)
            else short(entry.id) in self.rows.row_of
        )

    def _embedded(self, entry: Entry, fresh: dict[tuple[str, str], Entry]) -> Entry:
        if not isinstance(entry, Experience) or entry.embedder == self.embedder.version:
            return entry
        stored = fresh.get(("Stored", entry.before))
        program = stored.program if isinstance(stored, Stored) else self.program(entry.before)
        code = program.text if program is not None else ""
        place = Situation(code, entry.profile, entry.family, entry.dtype, entry.device, entry.scale)
        return with_vector(entry, to_bytes(self.embedder.embed(place)), self.embedder.version)

    def learn(self, episode: Episode, task: Task, now: float | None = None) -> int:
        """Remember every step of an episode, failures too; returns how many steps were new."""
        before = self.rows.count
        self.add(episode_entries(episode, task, time.time() if now is None else now))
        return self.rows.count - before

    def forget(self, target: str, reason: str) -> None:
        """Remove one experience from every answer, by its id."""
        self.add([Forget(target, reason)])

    # -- recall --------------------------------------------------------------------------------

    def recall(
        self,
        situation: Situation,
        k: int = 5,
        wanted: Filter = Filter(),
        holdout: Holdout = Holdout(),
        per_episode: int = 1,
    ) -> list[Recollection]:
        """Up to ``k`` similar remembered steps, most similar first, diverse, never held-out ones.

        At most ``per_episode`` steps come from one episode, and the same edit is not told twice.
        """
        try:
            return self._recall(situation, k, wanted, holdout, per_episode)
        except Compacted:
            if self.frozen:
                raise
            self.refresh()
            return self._recall(situation, k, wanted, holdout, per_episode)

    def _recall(
        self, situation: Situation, k: int, wanted: Filter, holdout: Holdout, per_episode: int
    ) -> list[Recollection]:
        if k < 1 or not self.rows.count:
            return []
        allowed = self.rows.allowed(wanted, holdout)
        query = self.embedder.embed(situation)
        reach = 8 * k
        while True:
            numbers, scores = self.index.search(query, reach, allowed)
            chosen = self._diverse(numbers, scores, k, per_episode)
            if len(chosen) == k or reach >= int(allowed.sum()):
                return chosen
            reach *= 4

    def _diverse(
        self, numbers: NDArray[np.int64], scores: NDArray[np.float32], k: int, per_episode: int
    ) -> list[Recollection]:
        episodes: dict[int, int] = {}
        told: set[tuple[str, str]] = set()
        chosen: list[Recollection] = []
        for row, score in zip(numbers.tolist(), scores.tolist(), strict=True):
            episode = int(self.rows.table["episode"][row])
            if episodes.get(episode, 0) >= per_episode:
                continue
            record = self._readable(row)
            if record is None:
                continue
            mark = (record.before, record.action)
            if mark in told:
                continue
            told.add(mark)
            episodes[episode] = episodes.get(episode, 0) + 1
            after = self.program(record.after) if record.after else None
            chosen.append(Recollection(record, score, self.program(record.before), after))
            if len(chosen) == k:
                break
        return chosen

    # -- upkeep --------------------------------------------------------------------------------

    def merge(self, other: Memory) -> int:
        """Take in everything ``other`` holds; commutative and idempotent. Returns the new entries."""
        new, batch = 0, []
        for entry in other.entries():
            batch.append(entry)
            if len(batch) == 512:
                new += self.add(batch)
                batch.clear()
        return new + self.add(batch)

    def compact(self) -> None:
        """Drop forgotten steps, repeated entries and programs nobody refers to.

        Raises:
            KbError: if there are entries of another version, whose programs cannot be told from those.
        """
        with self.log.locked():
            kept, programs, seen = [], set(), set()
            forgotten = {entry.target for entry in self.entries() if isinstance(entry, Forget)}
            for entry in self.entries():
                if isinstance(entry, Experience) and entry.id not in forgotten:
                    programs |= {entry.before, entry.after}
            for position, payload in self.log.scan(None, []):
                try:
                    entry = decode(payload)
                except RecordError as error:  # whole by its CRC: somebody wrote it so
                    raise KbError(f"cannot compact {self.folder}: {error}; the log is unchanged") from error
                mark = (type(entry).__name__, entry.id)
                drop = (isinstance(entry, Stored) and entry.id not in programs) or (
                    isinstance(entry, Experience) and entry.id in forgotten
                )
                if not drop and mark not in seen:
                    seen.add(mark)
                    kept.append(position)
            self.log.rewrite(self.log.read(position) for position in kept)
        self.refresh()

    def verify(self) -> Info:
        """Read every byte of the log, whatever the index cache says, and report all damage.

        A torn tail is either a write under way or one that was cut off; the next writer moves it away.
        """
        damage: list[Damage] = []
        self.unreadable = 0
        for _, payload in self.log.scan(None, damage, self._generation):
            try:
                decode(payload)
            except RecordError:
                self.unreadable += 1
        self.damage = damage
        return self.info()

    def info(self) -> Info:
        """Counts, sizes and the damage met so far; :meth:`verify` looks for all of it."""
        return Info(
            int(self.rows.table["alive"][: self.rows.count].sum()),
            len(self.rows.programs),
            len(self._operations),
            len(self.rows.forgotten),
            sum(segment.path.stat().st_size for segment in self.log.segments()),
            self._index_state,
            (*self.damage, *self.log.cut),
            self.unreadable,
        )

    def save_index(self) -> None:
        """Save the vector cache; a failure leaves the memory as it is."""
        if self._next is not None and self.holdout == Holdout():
            state = self.rows.dump(pack(list(self._operations.values())))
            place = (self._next.segment, self._next.offset)
            if self.index.save(self.folder, self._generation, place, self.embedder.version, state):
                self._saved = self.index.count

    def close(self) -> None:
        if not self.frozen and self.index.count - self._saved >= SAVE_AFTER:
            self.save_index()
        self.log.close()


def episode_key(episode: Episode) -> str:
    """What an episode's experiences are known by in ``Experience.episode``."""
    return digest(
        "\0".join((episode.task, episode.policy, str(episode.seed), episode.device, episode.initial.key))
    )


def episode_entries(episode: Episode, task: Task, now: float) -> list[Entry]:
    """An episode as entries: each step's programs once, and one experience a step."""
    key = episode_key(episode)
    # By program, not by order: a step may start from the best program after a revert.
    known = {episode.initial.key: episode.initial_evaluation}
    programs = {episode.initial.key: episode.initial}
    entries: list[Entry] = [Stored(episode.initial)]
    for step in episode.steps:
        if step.status is Status.UNRECORDED or step.action.strip() in ("submit", "revert"):
            continue
        entries += [Stored(program) for program in (step.before, step.after) if program is not None]
        step = _rebased(step, programs.get(str(step.notes.get("base_key", ""))))
        entries.append(_experience(step, episode, task, key, known.get(step.before.key), now))
        if step.after is not None and step.evaluation is not None and step.evaluation.verified:
            known.setdefault(step.after.key, step.evaluation)
            programs.setdefault(step.after.key, step.after)
    return entries


def _rebased(step: StepRecord, base: Program | None) -> StepRecord:
    """The step as an edit of the program that the policy says it edited, where that is another."""
    if base is None or base == step.before:
        return step
    action = diff_action(base.text, step.after.text) if step.after is not None else step.action
    return replace(step, before=base, action=action)


def _experience(
    step: StepRecord, episode: Episode, task: Task, key: str, before: Evaluation | None, now: float
) -> Experience:
    timed = step.evaluation if step.evaluation is not None and step.evaluation.verified else None
    previous = before.speedup if before is not None and before.speedup is not None else 1.0
    gain = low = high = None
    if timed is not None and timed.speedup is not None:
        base = math.log(previous)
        gain = math.log(timed.speedup) - base
        low = math.log(timed.speedup_low or timed.speedup) - base
        high = math.log(timed.speedup_high or timed.speedup) - base
    predicted = step.notes.get("predicted_gain")
    # Notes hold a ratio, as people speak of it; the memory holds logs.
    foreseen = math.log(predicted) if isinstance(predicted, (int, float)) and predicted > 0 else None
    return Experience(
        task.name,
        task.family,
        task.suite,
        task.dtype,
        episode.device,
        episode.source,
        episode.policy,
        key,
        step.index,
        step.before.key,
        step.after.key if step.after is not None else None,
        step.action,
        str(step.notes.get("technique", "")),
        str(step.status),
        gain,
        low,
        high,
        step.speedup,
        before.profile if before is not None else None,
        step.feedback if timed is None else "",
        task_scale(task),
        foreseen,
        str(step.notes.get("move", "")),
        now,
        dict(episode.versions),
    )
