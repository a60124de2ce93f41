"""What ``maicrl`` lets a model say: JSON schemas, and checks of every answer against them.

A schema sent to a server is a wish; the check here is what holds. An answer that fails it gets one
repair round with the reason; a second bad one is given up, and the policy goes on without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from kb_env.edits import FORBIDDEN
from policies.chat import Chat, parse_json
from policies.maicrl_choice import Proposal
from policies.render import shortened

T = TypeVar("T")

#: Gains that a model may predict or a note may claim, as ratios.
SMALLEST, LARGEST = 0.05, 100.0
#: Most techniques in a plan, and longest free text that is taken over, in characters.
MOST_PROPOSALS, LONGEST_TEXT = 6, 400
REPAIR = "That answer cannot be used: {}. Answer again with exactly one JSON object of the form asked for."
_NAME = re.compile(r"[a-z0-9][a-z0-9 +/.-]{1,47}$")

PLAN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "plan": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "technique": {"type": "string"},
                    "why": {"type": "string"},
                    "predicted_speedup": {"type": "number"},
                    "guidance": {"type": "string"},
                },
                "required": ["technique", "why", "predicted_speedup", "guidance"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["plan"],
    "additionalProperties": False,
}


def one_line(text: str, limit: int = LONGEST_TEXT) -> str:
    """Free text as one line without control characters or fences, cut to ``limit`` characters."""
    flat = " ".join(FORBIDDEN.sub(" ", text).split()).replace("```", "` ` `")
    return flat if len(flat) <= limit else flat[: limit - 4] + " ..."


def technique_name(value: object) -> str:
    """A technique's name in its one spelling.

    Raises:
        ValueError: if it is not 2 to 48 letters, digits, blanks and ``+ / . -``.
    """
    name = " ".join(str(value).lower().replace("_", " ").split())
    if not isinstance(value, str) or not _NAME.match(name):
        raise ValueError(
            f"{one_line(str(value), 60)!r} is no technique's name: use 2 to 48 letters, digits, blanks"
        )
    return name


def log_gain(value: object) -> float:
    """The natural log of a ratio within bounds; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{one_line(str(value), 60)!r} is no speedup between {SMALLEST} and {LARGEST:g}")
    return math.log(value)


def text_of(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return one_line(value)


def items_of(raw: object, name: str) -> list[Mapping[str, Any]]:
    """The list of objects under ``name`` in an answer."""
    items = raw.get(name) if isinstance(raw, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"there is no list of objects under {name!r}")
    return items


def read_plan(raw: object, known: Collection[str], strict: bool = True) -> list[Proposal]:
    """The proposals of a plan, each technique once; an empty plan means that nothing is left to gain.

    Raises:
        ValueError: if it is no plan, or names an unknown technique without saying what it is
            (``strict``; else such a proposal is left out).
    """
    found: dict[str, Proposal] = {}
    items = items_of(raw, "plan")
    for item in items[:MOST_PROPOSALS]:
        name, guidance = technique_name(item.get("technique")), text_of(item, "guidance")
        predicted = log_gain(item.get("predicted_speedup"))
        if name in known:
            guidance = ""
        elif not guidance:
            if strict:
                raise ValueError(
                    f"{name!r} is not on the list: take one that is, or give guidance for the new one"
                )
            continue
        found.setdefault(name, Proposal(name, text_of(item, "why"), predicted, guidance))
    if items and not found:
        raise ValueError("no technique of the plan can be used")
    return list(found.values())


def ask_checked(
    chat: Chat,
    messages: Sequence[Mapping[str, str]],
    schema: Mapping[str, Any],
    check: Callable[[object, bool], T],
) -> tuple[T | None, str]:
    """A checked answer and no fault, or None and what was wrong with the second answer.

    ``check`` is told whether it may still be strict: in the repair round it takes what it can.
    """
    asked, fault = list(messages), ""
    for strict in (True, False):
        answer = chat.ask(asked, schema)[0]
        try:
            return check(parse_json(answer.text), strict), ""
        except (ValueError, RecursionError) as error:
            fault = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if answer.finish == "length":
            fault += " (it was cut off: keep it short)"
        asked = [
            *messages,
            {"role": "assistant", "content": shortened(answer.text, 600) or "(empty)"},
            {"role": "user", "content": REPAIR.format(fault)},
        ]
    return None, fault
