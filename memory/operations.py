"""Which operations on the knowledge base hold: nothing is deleted, everything can be taken back.

An operation names earlier ones in ``replaces``; it holds unless one that holds replaces it. So a
retraction of an operation brings back what that operation had superseded, and a retraction of the
retraction takes it away again. Names cannot form a circle: an id is the hash of its content, the
ids it replaces included. Other kinds (``update``, ``rejected``) are history: they replace nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from memory.entries import Operation
from memory.signature import parts

#: Kinds that change what the knowledge base says.
SPEAKING = ("technique", "belief", "alias", "note")


def applies(wanted: str, held: str | None) -> bool:
    """Whether something said about signature ``wanted`` (empty: any) concerns a program of ``held``."""
    return held is None or not wanted or set(parts(wanted)) <= set(parts(held))


class Operations:
    """All operations ever made, and the live ones among them. Order and repetition change nothing."""

    def __init__(self) -> None:
        self._known: dict[str, Operation] = {}
        self._live: dict[str, list[Operation]] | None = None
        self._resolved: dict[tuple[str, str], str] = {}

    def add(self, item: Operation) -> None:
        self._known[item.id] = item
        self._live = None

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def live(self, kind: str | None = None) -> list[Operation]:
        """Operations that hold, of one kind or all of :data:`SPEAKING`, oldest first."""
        if self._live is None:
            replaced = self._replaced()
            self._live = {name: [] for name in SPEAKING}
            self._resolved = {}
            for item in self.history():
                if item.id not in replaced and item.kind in self._live:
                    self._live[item.kind].append(item)
        if kind is not None:
            return list(self._live.get(kind, ()))
        found = [item for items in self._live.values() for item in items]
        return sorted(found, key=lambda item: (item.time, item.id))

    def holds(self, key: str) -> bool:
        """Whether the operation of this id is known and nothing that holds replaces it."""
        return key in self._known and key not in self._replaced()

    def _replaced(self) -> set[str]:
        """Ids that an operation that holds replaces: each is settled once all its replacers are."""
        waiting = dict.fromkeys(self._known, 0)
        targets = {
            key: {target for target in item.replaces if target in waiting}
            if item.kind in (*SPEAKING, "retract")
            else set()
            for key, item in self._known.items()
        }
        for found in targets.values():
            for target in found:
                waiting[target] += 1
        ready, replaced = [key for key, count in waiting.items() if not count], set()
        while ready:
            key = ready.pop()
            for target in targets[key]:
                if key not in replaced:
                    replaced.add(target)
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        return replaced

    def history(self) -> list[Operation]:
        """Every operation ever made, superseded or not, oldest first."""
        return sorted(self._known.values(), key=lambda item: (item.time, item.id))

    def guidance(self, technique: str) -> str:
        """The newest definition of a technique; empty if there is none."""
        texts = [item.text for item in self.live("technique") if item.subject == technique]
        return texts[-1] if texts else ""

    def notes(self, technique: str | None = None, held: str | None = None) -> list[Operation]:
        """Live notes on a technique that apply to signature ``held`` (notes without one always do)."""
        return [
            item
            for item in self.live("note")
            if technique in (None, item.subject) and applies(item.signature, held)
        ]

    def resolve(self, technique: str, held: str = "") -> str:
        """The name a technique goes by in signature ``held``.

        An alias without a signature merges two techniques; one with a signature splits off what the
        technique is in such situations. The narrowest alias wins, the newest among equals.
        """
        aliases = self.live("alias")  # also forgets what was resolved, where something has changed
        if not aliases:
            return technique
        if (technique, held) not in self._resolved:
            seen, name = {technique}, technique
            while (found := _alias(aliases, name, held)) is not None and found not in seen:
                seen.add(found)
                name = found
            self._resolved[technique, held] = name
        return self._resolved[technique, held]


def _alias(aliases: Iterable[Operation], technique: str, held: str) -> str | None:
    """What ``technique`` is called in ``held`` by one alias."""
    fitting = [item for item in aliases if item.subject == technique and applies(item.signature, held)]
    widths = [(len(parts(item.signature)) if item.signature else 0, n) for n, item in enumerate(fitting)]
    return fitting[max(widths)[1]].text if fitting else None
