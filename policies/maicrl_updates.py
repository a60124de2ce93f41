"""The operations that a model may ask for on the knowledge base, and the check of what it asked.

Whatever passes is bounded: names and texts are short single lines, a belief counts for
:data:`BELIEF_WEIGHT` observations, gains stay within :data:`GAINS`, and only beliefs and notes that
the model was shown can be replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory.entries import Operation
from memory.knowledge import Knowledge
from memory.signature import FLAGS, LIMITERS, UNKNOWN, parts
from policies.maicrl_answers import LARGEST, SMALLEST, items_of, one_line, technique_name, text_of

#: Observations that an adjusted belief counts for, and the ratios it may state.
BELIEF_WEIGHT, GAINS = 2.0, (SMALLEST, LARGEST)
MOST_OPERATIONS = 12

LIMITER_WORDS = (*(word for word, _ in LIMITERS), "latency", "occupancy", UNKNOWN)
FLAG_WORDS = tuple(flag for flag, *_ in FLAGS)

_FIELDS: dict[str, Any] = {
    "op": {"type": "string", "enum": ["adjust", "add", "split", "merge", "note", "retract"]},
    "technique": {"type": "string"},
    "signature": {"type": "string"},
    "into": {"type": "string"},
    "speedup": {"type": ["number", "null"]},
    "text": {"type": "string"},
    "replaces": {"type": "array", "items": {"type": "string"}},
}

UPDATE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "operations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": _FIELDS,
                "required": list(_FIELDS),
                "additionalProperties": False,
            },
        }
    },
    "required": ["operations"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Context:
    """What an update is checked against, and what all of its operations have in common."""

    knowledge: Knowledge
    device: str
    source: str
    number: int
    time: float
    episodes: tuple[str, ...]
    #: what may be named in ``replaces``, by the first eight characters of its id
    replaceable: Mapping[str, Operation]

    @property
    def author(self) -> str:
        return f"gradient {self.number}"

    @staticmethod
    def of(knowledge: Knowledge, device: str, source: str, number: int, episodes: tuple[str, ...]) -> Context:
        # Logical time: operations are ordered by it, and a rerun makes the same ones.
        now = max((item.time for item in knowledge.history()), default=0.0) + 1.0
        found = [*knowledge.live("belief"), *knowledge.live("note")]
        return Context(
            knowledge, device, source, number, now, episodes, {item.id[:8]: item for item in found}
        )

    def operation(self, kind: str, subject: str, **rest: Any) -> Operation:
        return Operation(kind, subject, provenance=self.episodes, author=self.author, time=self.time, **rest)


def words_of(item: Operation) -> str:
    """A belief or note as the model is shown it, with the name it can be replaced by."""
    where = f" in {item.signature}" if item.signature else ""
    said = (
        f"{math.exp(item.value):.2f} times, by {item.author or 'someone'}"
        if item.kind == "belief"
        else item.text
    )
    return f"- [{item.id[:8]}] {item.kind}, {item.subject or 'in general'}{where}: {said}"


def read_signature(value: object) -> str:
    """A signature in the vocabulary of memory/signature.py, or empty for any.

    Raises:
        ValueError: naming the word that is none.
    """
    if not isinstance(value, str):
        raise ValueError("signature must be text")
    if not value.strip():
        return ""
    first, *flags = (word.strip() for word in parts(value.strip().lower()))
    if first not in LIMITER_WORDS:
        raise ValueError(f"{one_line(first, 40)!r} is no limiter: use one of {', '.join(LIMITER_WORDS)}")
    for flag in flags:
        if flag not in FLAG_WORDS:
            raise ValueError(f"{one_line(flag, 40)!r} is no flag: use {', '.join(FLAG_WORDS)}")
    return "+".join((first, *(flag for flag in FLAG_WORDS if flag in flags)))


def read_update(raw: object, context: Context, strict: bool = True) -> list[list[Operation]]:
    """The proposals of an answer, each one or more operations that belong together.

    Raises:
        ValueError: if it is no update, or (``strict``) one of its operations is wrong; else wrong
            ones are left out.
    """
    found = []
    for number, item in enumerate(items_of(raw, "operations")[:MOST_OPERATIONS], 1):
        try:
            found.append(read_operation(item, context))
        except ValueError as error:
            if strict:
                raise ValueError(f"operation {number}: {error}") from error
    return found


def read_operation(item: Mapping[str, Any], context: Context) -> list[Operation]:
    """One proposal; ValueError says what is wrong with it."""
    makers = {
        "adjust": _adjust,
        "add": _add,
        "split": _split,
        "merge": _merge,
        "note": _note,
        "retract": _retract,
    }
    kind = item.get("op")
    if not isinstance(kind, str) or kind not in makers:
        raise ValueError(f"{one_line(str(kind), 40)!r} is no operation: use {', '.join(makers)}")
    return makers[kind](item, context)


def _known(value: object, context: Context) -> str:
    name = technique_name(value)
    if name not in context.knowledge.techniques:
        raise ValueError(f"{name!r} is not known: add it first")
    return name


def _new(value: object, context: Context) -> str:
    name = technique_name(value)
    if name in context.knowledge.techniques or context.knowledge.resolve(name) != name:
        raise ValueError(f"{name!r} is taken: choose another name")
    return name


def _worded(item: Mapping[str, Any]) -> str:
    text = text_of(item, "text")
    if not text:
        raise ValueError("text is empty")
    return text


def _replaced(item: Mapping[str, Any], context: Context) -> tuple[str, ...]:
    names = item.get("replaces") or []
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise ValueError("replaces must be a list of names in brackets")
    unknown = [str(name) for name in names if str(name) not in context.replaceable]
    if unknown:
        raise ValueError(f"{one_line(unknown[0], 20)!r} names nothing that was shown in brackets")
    return tuple(sorted({context.replaceable[str(name)].id for name in names}))


def _adjust(item: Mapping[str, Any], context: Context) -> list[Operation]:
    name, held, value = (
        _known(item.get("technique"), context),
        read_signature(item.get("signature", "")),
        item.get("speedup"),
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not GAINS[0] <= value <= GAINS[1]:
        raise ValueError(f"speedup must be a number from {GAINS[0]} to {GAINS[1]:g}")
    made = context.operation(
        "belief",
        name,
        signature=held,
        device=context.device,
        source=context.source,
        value=math.log(value),
        weight=BELIEF_WEIGHT,
    )
    # An adjustment takes the place of earlier ones of the same cell; other beliefs have to be named.
    same = [
        old.id
        for old in context.knowledge.live("belief")
        if (old.subject, old.signature, old.device, old.source)
        == (name, held, context.device, context.source)
    ]
    return [replace(made, replaces=tuple(sorted({*same, *_replaced(item, context)})))]


def _add(item: Mapping[str, Any], context: Context) -> list[Operation]:
    return [context.operation("technique", _new(item.get("technique"), context), text=_worded(item))]


def _split(item: Mapping[str, Any], context: Context) -> list[Operation]:
    name, into = _known(item.get("technique"), context), _new(item.get("into"), context)
    held = read_signature(item.get("signature", ""))
    if not held:
        raise ValueError("a split needs the signature of the situations that are split off")
    return [
        context.operation("technique", into, text=_worded(item)),
        context.operation("alias", name, text=into, signature=held),
    ]


def _merge(item: Mapping[str, Any], context: Context) -> list[Operation]:
    name, into = _known(item.get("technique"), context), _known(item.get("into"), context)
    if context.knowledge.resolve(into) == context.knowledge.resolve(name):
        raise ValueError(f"{name!r} and {into!r} are the same already")
    return [context.operation("alias", name, text=into)]


def _note(item: Mapping[str, Any], context: Context) -> list[Operation]:
    name = _known(item.get("technique"), context) if item.get("technique") else ""
    held = read_signature(item.get("signature", ""))
    return [
        context.operation("note", name, text=_worded(item), signature=held, replaces=_replaced(item, context))
    ]


def _retract(item: Mapping[str, Any], context: Context) -> list[Operation]:
    replaced = _replaced(item, context)
    if not replaced:
        raise ValueError("retract names nothing in replaces")
    return [context.operation("retract", "", replaces=replaced)]
