"""Learning after a round, once: what a policy does to the knowledge base is kept in the run folder.

A policy that asks a model what to learn would answer otherwise the second time, so a resumed run
takes its operations from the folder and comes to the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kb_env.files import write_atomic
from kb_env.records import RecordError, from_plain, pack, plain, unpack_plain
from kb_env.types import Episode, KbError
from memory.entries import Operation
from memory.store import Memory
from policies.policy import make_policy, takes


def read_operations(path: Path) -> list[Operation]:
    """Operations written by :func:`teach`.

    Raises:
        KbError: if the file is damaged.
    """
    try:
        found = unpack_plain(path.read_bytes())
        return [from_plain(Operation, item) for item in found["operations"]]
    except (RecordError, KeyError, TypeError) as error:
        raise KbError(
            f"{path} is damaged ({error}): delete it, and what is learned is asked for again"
        ) from error


def teach(
    policy: str, settings: Mapping[str, Any], memory: Path, episodes: Sequence[Episode], kept: Path
) -> list[Operation]:
    """Let ``policy`` learn from episodes that the memory holds; returns the operations it made.

    They are read from the file ``kept`` where it is there, else learned and written to it.
    """
    store = Memory(memory, sync="none")
    try:
        if kept.exists():
            made = read_operations(kept)
            store.add(made)
            return made
        known = {item.id for item in store.knowledge.history()}
        if episodes:
            make_policy(policy, memory=store, **takes(policy, settings)).learn(episodes)
        made = [item for item in store.knowledge.history() if item.id not in known]
        write_atomic(kept, pack({"operations": [plain(item) for item in made]}))
        return made
    finally:
        store.close()
