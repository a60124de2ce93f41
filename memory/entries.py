"""What the memory holds: experiences, programs, and operations on the knowledge base.

Every entry has an ``id`` that is the hash of its content without its clock, so that the union of
two memories is a set union: merging is commutative and idempotent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kb_env.records import RecordError, from_plain, pack, plain, unpack_plain
from kb_env.types import Profile, Program, digest

#: Raised when an entry's meaning changes; older entries are read as they are.
ENTRY_SCHEMA = 1


@dataclass(frozen=True)
class Situation:
    """Where a policy stands: the program, what was measured of it, and what it computes.

    ``scale`` is log10 of the elements that the first bench case moves.
    """

    code: str
    profile: Profile | None
    family: str
    dtype: str
    device: str
    scale: float = 0.0


@dataclass(frozen=True)
class Experience:
    """One remembered step. ``before`` and ``after`` are program keys, see :class:`Stored`.

    ``gain`` is the natural log of the paired speedup of ``after`` over ``before`` (None if the
    step failed), ``gain_low`` and ``gain_high`` its interval. ``speedup`` is against the task's
    initial program. ``message`` says why a failed step failed. ``profile`` is that of ``before``.
    """

    task: str
    family: str
    suite: str
    dtype: str
    device: str
    source: str
    policy: str
    episode: str
    index: int
    before: str
    after: str | None
    action: str
    technique: str
    status: str
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    speedup: float | None
    profile: Profile | None
    message: str
    scale: float = 0.0
    predicted: float | None = None
    #: which variant of the technique, where the policy can tell (such as ``change_constant:3``)
    move: str = ""
    time: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    #: unit vector of the situation before the step, float16 bytes, and the embedder that made it
    vector: bytes = b""
    embedder: str = ""

    @property
    def id(self) -> str:
        return content_id(self, ("time", "vector", "embedder"))


@dataclass(frozen=True)
class Stored:
    """A program, kept once however many steps refer to it."""

    program: Program

    @property
    def id(self) -> str:
        return self.program.key


@dataclass(frozen=True)
class Operation:
    """A change to the knowledge base.

    ``kind``: ``technique`` (define or redefine ``subject``: ``text`` is its guidance), ``note``
    (a lesson about ``subject`` in bottleneck ``signature``), ``belief`` (pseudo-observations:
    ``weight`` observations of mean log gain ``value``), ``alias`` (``subject`` is the technique
    ``text``, in situations of ``signature`` only if there is one), ``retract`` (the operations in
    ``replaces`` no longer count), ``update`` and ``rejected`` (history only: what a learner did, what
    it proposed in vain). Any kind may supersede earlier ones by naming them in ``replaces``; nothing
    is deleted. ``provenance`` names the episodes that led to it. A belief is about ``device`` and
    ``source`` (``measured``, ``modelled``), each empty for any.
    """

    kind: str
    subject: str
    text: str = ""
    signature: str = ""
    device: str = ""
    value: float = 0.0
    weight: float = 0.0
    replaces: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    author: str = ""
    time: float = 0.0
    source: str = ""

    @property
    def id(self) -> str:
        # Operations written before there was a source keep their ids.
        return content_id(self, ("time",) if self.source else ("time", "source"))


@dataclass(frozen=True)
class Forget:
    """Removes the experience ``target`` from every answer; compaction drops it for good."""

    target: str
    reason: str = ""

    @property
    def id(self) -> str:
        return content_id(self, ())


Entry = Experience | Stored | Operation | Forget

_KINDS: dict[str, type[Any]] = {cls.__name__: cls for cls in (Experience, Stored, Operation, Forget)}


@dataclass(frozen=True)
class Recollection:
    """A remembered step, how similar its situation is (cosine, -1 to 1), and its programs."""

    record: Experience
    similarity: float
    before: Program | None = None
    after: Program | None = None


@dataclass(frozen=True)
class Holdout:
    """What must never be recalled: an experiment's held-out tasks, operator families and GPUs.

    Families count across suites: three matrix products of different names are one family.
    """

    tasks: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()

    def hides(self, experience: Experience) -> bool:
        return (
            experience.task in self.tasks
            or experience.family in self.families
            or experience.device in self.devices
            or experience.episode in self.episodes
        )


@dataclass(frozen=True)
class Filter:
    """What may be recalled; an empty tuple means any. Times are unix seconds."""

    tasks: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None


def content_id(entry: object, leave_out: tuple[str, ...]) -> str:
    """Hash of an entry's content without the named fields."""
    facts = plain(entry)
    for name in leave_out:
        facts.pop(name)
    return digest(pack(_ordered(facts)))


def _ordered(value: Any) -> Any:
    """Maps as sorted pairs, so that equal content gives equal bytes."""
    if isinstance(value, dict):
        return [[key, _ordered(value[key])] for key in sorted(value)]
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def encode(entry: Entry) -> bytes:
    """Log payload of an entry."""
    return pack({"schema": ENTRY_SCHEMA, "kind": type(entry).__name__, "entry": plain(entry)})


def decode(data: bytes) -> Entry:
    """Entry of a log payload; raises RecordError if it is not one."""
    raw = unpack_plain(data)
    if not isinstance(raw, dict) or raw.get("kind") not in _KINDS:
        raise RecordError("not a memory entry")
    if raw.get("schema") != ENTRY_SCHEMA:
        raise RecordError(
            f"entry schema {raw.get('schema')} is not {ENTRY_SCHEMA}: use the kb-env that wrote it"
        )
    entry: Entry = from_plain(_KINDS[raw["kind"]], raw.get("entry"))
    return entry


def with_vector(experience: Experience, vector: bytes, embedder: str) -> Experience:
    return dataclasses.replace(experience, vector=vector, embedder=embedder)
