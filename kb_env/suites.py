"""Which tasks an environment draws from: one, a suite, or a split of a suite by operator family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kb_env.task import builtin_names, load_task
from kb_env.types import KbError, Task, digest

SPLITS = ("all", "train", "test")

#: A task by name, by folder, or loaded.
TaskLike = str | Path | Task


def held_out(family: str) -> bool:
    """Whether an operator family belongs to the split ``test``: about one in four, by its hash.

    The rule is by family and not by task, so that no variant of a test task is trained on.
    """
    return int(digest(f"kb-env split 1: {family}")[:8], 16) % 4 == 0


@dataclass
class TaskPool:
    """Tasks to draw from, loaded when first drawn."""

    entries: tuple[TaskLike, ...]
    split: str = "all"
    _tasks: tuple[Task, ...] | None = field(default=None, repr=False)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the split.

        Raises:
            KbError: if a task does not load or the split is empty.
        """
        if self._tasks is None:
            tasks = tuple(entry if isinstance(entry, Task) else load_task(entry) for entry in self.entries)
            if self.split != "all":
                tasks = tuple(task for task in tasks if held_out(task.family) == (self.split == "test"))
            if not tasks:
                raise KbError(f"split {self.split!r} of these {len(self.entries)} tasks is empty: use 'all'")
            self._tasks = tasks
        return self._tasks

    def draw(self, random: np.random.Generator) -> Task:
        """A task, uniformly. One number is drawn whatever the size of the pool."""
        number = int(random.integers(1 << 31))
        if self.split == "all":  # the others need not load
            entry = self.entries[number % len(self.entries)]
            return entry if isinstance(entry, Task) else load_task(entry)
        return self.tasks[number % len(self.tasks)]


def task_pool(task: TaskLike | None, suite: str | Path | Sequence[TaskLike] | None, split: str) -> TaskPool:
    """The pool for ``task=`` or ``suite=`` (neither: the built-in suite ``kb``). Loads nothing.

    Raises:
        KbError: if both are given, the split is none, or the suite holds no task.
    """
    if split not in SPLITS:
        raise KbError(f"no split {split!r}: use one of {', '.join(SPLITS)}")
    if task is not None:
        if suite is not None:
            raise KbError("give either task or suite, not both")
        return TaskPool((task,))
    if suite is None or suite == "kb":
        return TaskPool(tuple(builtin_names()), split)
    if isinstance(suite, (str, Path)):
        folders = sorted(path.parent for path in Path(suite).expanduser().glob("*/task.toml"))
        if not folders:
            raise KbError(f"no suite {str(suite)!r}: give 'kb', a folder of task folders, or a list of tasks")
        return TaskPool(tuple(folders), split)
    if not suite:
        raise KbError("the suite is an empty list: give at least one task")
    return TaskPool(tuple(suite), split)
