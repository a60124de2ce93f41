"""Pieces of text within a token budget: nothing is cut without saying so.

Tokens are estimated here, for planning; what they really were is in each answer's usage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Fewest tokens worth keeping of a part that has to be cut.
SMALLEST_PIECE = 64
#: Characters a token stands for when budgets are planned; servers count for themselves.
CHARACTERS_PER_TOKEN = 3.5


@dataclass(frozen=True)
class Part:
    """A titled piece of a prompt. Lower ``rank`` stays longer when space is short; ``limit`` in tokens."""

    title: str
    text: str
    rank: int
    limit: int


@dataclass(frozen=True)
class Fitted:
    """Parts put together, with the estimated tokens of each by title, and what had to be cut or left out."""

    text: str
    tokens: Mapping[str, int]
    cut: tuple[str, ...] = ()


def tokens_of(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def shortened(text: str, limit: int) -> str:
    """The text within ``limit`` tokens: its head and tail, and how much was left out between."""
    room = int(limit * CHARACTERS_PER_TOKEN)
    if len(text) <= room:
        return text
    # The note takes room of its own, where there is enough for more than the note.
    room = max(room - 48, room // 2, 0)
    head = room * 2 // 3
    left = len(text) - room
    return f"{text[:head]}\n[... {left} characters left out ...]\n{text[len(text) - (room - head) :]}"


def fitted(parts: Sequence[Part], budget: int) -> Fitted:
    """Parts in the order given, within ``budget`` tokens; parts that were cut say so, others are named."""
    kept: dict[int, str] = {}
    left = budget - 1 - sum(tokens_of(part.title) + 1 for part in parts)  # room to name what is left out
    dropped, cut = [], []
    for place, part in sorted(enumerate(parts), key=lambda item: item[1].rank):
        if not part.text:
            continue
        room = min(part.limit, left - tokens_of(f"## {part.title}\n\n\n"))
        if tokens_of(part.text) > room and room < SMALLEST_PIECE:
            dropped.append(part.title)
            continue
        text = shortened(part.text, room)
        if text != part.text:
            cut.append(part.title)
        kept[place] = f"## {part.title}\n{text}"
        left -= tokens_of(f"{kept[place]}\n\n")
    note = [f"(left out for lack of space: {', '.join(dropped)})"] if dropped else []
    tokens: dict[str, int] = {}
    for place in sorted(kept):  # parts may share a title
        tokens[parts[place].title] = tokens.get(parts[place].title, 0) + tokens_of(kept[place])
    text = "\n\n".join([kept[place] for place in sorted(kept)] + note)
    return Fitted(text, tokens, (*cut, *dropped))


def fit(parts: Sequence[Part], budget: int) -> str:
    return fitted(parts, budget).text


def fenced(text: str, language: str = "cuda") -> str:
    """Text in a fence longer than any it contains."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def numbered(text: str) -> str:
    """Source with line numbers, as compilers and profiles name them; :func:`unnumbered` takes them away."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    width = len(str(len(lines)))
    return "\n".join(f"{number:>{width}}| {line}" for number, line in enumerate(lines, 1))


_NUMBER = re.compile(r"^ *\d+\| ?", re.MULTILINE)


def unnumbered(text: str) -> str:
    """Text without the line numbers that a model may have copied along."""
    return _NUMBER.sub("", text)


def listed(items: Sequence[str], limit: int) -> str:
    """Items, the first ones first, within ``limit`` tokens; none is cut, and those left out are counted."""
    kept: list[str] = []
    left = limit - 12
    for item in items:
        left -= tokens_of(f"{item}\n")
        if left < 0:
            break
        kept.append(item)
    rest = len(items) - len(kept)
    return "\n".join([*kept, f"({rest} more left out for lack of space)"] if rest else kept)


def first_line(text: str, limit: int) -> str:
    """The first line of a text, on which more may follow, within ``limit`` characters."""
    line = next(iter(text.strip().splitlines()), "")
    return line if len(line) <= limit else f"{line[:limit]} ..."
