"""A Gymnasium space for code: any printable text up to a length, whose samples are valid edits.

``gymnasium.spaces.Text`` does not do: its character sets leave out space, line end and other
scripts, its samples are noise, and vector environments pass it garbage through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from kb_env.edits import FORBIDDEN, diff_action, format_edit
from kb_env.types import Edit

#: Draws an action for a program's text.
Sampler = Callable[[str, np.random.Generator], str]


def comment_edit(source: str, random: np.random.Generator) -> str:
    """An action that appends a comment: valid for ``source``, and of no effect."""
    end = "" if source.endswith("\n") or not source else "\n"
    return diff_action(source, f"{source}{end}// note {random.integers(1 << 16)}\n")


def transform_edit(source: str, random: np.random.Generator) -> str:
    """An action that applies a random transform of the catalogue, or a comment where none fits."""
    from kb_env.transforms import CATALOGUE  # tree-sitter loads only for who samples

    for _ in range(20):
        transform = CATALOGUE[int(random.integers(len(CATALOGUE)))]
        after = transform.apply(source, int(random.integers(transform.variants)))
        if after is not None and after != source:
            return diff_action(source, after)
    return comment_edit(source, random)


@dataclass(frozen=True)
class WholeFiles:
    """Draws one of these programs, whatever the source: what a recording can answer."""

    texts: tuple[str, ...]

    def __call__(self, source: str, random: np.random.Generator) -> str:
        return format_edit([Edit("", self.texts[int(random.integers(len(self.texts)))])])


class CodeText(Space[str]):
    """Texts of at most ``max_length`` characters without control characters other than white space.

    ``sample`` draws an edit of :attr:`source` by ``sampler``; with no source it draws ``revert``,
    which is valid for every program. Two spaces are equal when their lengths are.
    """

    def __init__(
        self,
        max_length: int,
        *,
        sampler: Sampler = comment_edit,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if max_length < 1:
            raise ValueError(f"max_length is {max_length}: at least one character")
        super().__init__(dtype=str, seed=seed)
        self.max_length = int(max_length)
        self.sampler = sampler
        #: The program that samples are edits of; the environment keeps it current.
        self.source: str | None = None

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        if mask is not None or probability is not None:
            raise ValueError("CodeText.sample takes neither mask nor probability")
        if self.source is None:
            return "revert"
        text = self.sampler(self.source, self.np_random)
        return text if text in self else "revert"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length and FORBIDDEN.search(x) is None

    def clean(self, text: str) -> str:
        """``text`` made a member: other characters become U+FFFD, a long middle is cut and said so."""
        return cut(FORBIDDEN.sub("\ufffd", text), self.max_length)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"CodeText({self.max_length})"

    def __hash__(self) -> int:
        return hash((CodeText, self.max_length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodeText) and self.max_length == other.max_length


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters: head and tail of a longer text, with a note between them."""
    if len(text) <= limit:
        return text
    note = f"\n... {len(text) - limit} characters cut ...\n"
    room = limit - len(note)
    if room < 2:
        return text[:limit]
    head = room * 2 // 3
    return text[:head] + note + text[len(text) - (room - head) :]
