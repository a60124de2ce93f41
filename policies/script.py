"""Policy ``script``: plays a list of given actions and files, then submits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import format_edit
from kb_env.types import Edit, Episode, KbError, Task


class Script:
    """``actions`` are texts to play as they are; a Path stands for the program in that file.

    Raises:
        KbError: if a file cannot be read.
    """

    name = "script"

    def __init__(self, actions: Sequence[str | Path] = ()) -> None:
        self.actions = tuple(_action(item) for item in actions)
        self._next = 0

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._next = 0

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        if self._next >= len(self.actions):
            return "submit"
        self._next += 1
        return self.actions[self._next - 1]

    def notes(self) -> Mapping[str, str | float]:
        return {"technique": "script", "position": float(self._next - 1)}

    def learn(self, episodes: Sequence[Episode]) -> None:
        """A script learns nothing."""

    def save(self, folder: Path) -> None:
        """There is nothing to save: the actions come from the caller."""

    def load(self, folder: Path) -> None:
        """There is nothing to load."""


def _action(item: str | Path) -> str:
    if isinstance(item, str):
        return item
    try:
        return format_edit([Edit("", item.read_text(encoding="utf-8"))])
    except (OSError, UnicodeDecodeError) as error:
        raise KbError(f"cannot read the program {item}: {error}") from error
