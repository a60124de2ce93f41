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
LEFT_OUT = "(left out for lack of space: {})"
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


_FENCE = re.compile(r"^(`{3,}).*$", re.MULTILINE)


def tokens_of(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def shortened(text: str, limit: int) -> str:
    """The text within ``limit`` tokens: its head and tail, and how much was left out between.

    What stood in a fence goes on standing in one: data must not be read as the prompt's own words.
    """
    most = int(limit * CHARACTERS_PER_TOKEN)
    if len(text) <= most:
        return text
    # The note takes room of its own, where there is enough for more than the note.
    room = most = max(most - 48, most // 2, 0)
    while True:
        head, closing, opening, tail = _ends(text, room)
        fences = len(closing) + len(opening)
        if fences <= most - room or not room:
            note = f"[... {len(text) - len(head) - len(tail)} characters left out ...]"
            return f"{head}\n{closing}{note}\n{opening}{tail}"
        room = max(min(most - fences, room * 3 // 4), 0)


def _ends(text: str, room: int) -> tuple[str, str, str, str]:
    """Head and tail of ``room`` characters together, and between them the fences that end one and begin the other."""
    head, tail = room * 2 // 3, len(text) - (room - room * 2 // 3)
    for match in _FENCE.finditer(text):  # none is cut in two
        if match.start() < head < match.end():
            head = match.start()
        if match.start() < tail < match.end():
            tail = match.end()
    fences = (_open_fence(text[:place]) for place in (head, tail))
    closing, opening = (f"{fence}\n" if fence else "" for fence in fences)
    return text[:head], closing, opening, text[tail:]


def _open_fence(text: str) -> str:
    """The fence (see :func:`fenced`) that a text ends within, or nothing."""
    fence = ""
    for match in _FENCE.finditer(text):
        if not fence:
            fence = match[1]
        elif match[0] == fence:
            fence = ""
    return fence


def fitted(parts: Sequence[Part], budget: int) -> Fitted:
    """Parts in the order given, within ``budget`` tokens; parts that were cut say so, others are named."""
    kept: dict[int, str] = {}
    # Room to name what is left out, should all of it be.
    left = budget - tokens_of(LEFT_OUT.format(", ".join(part.title for part in parts)))
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
    note = [LEFT_OUT.format(", ".join(dropped))] if dropped else []
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
