"""What a long run shows while it runs: a live table on a terminal, one plain line an episode elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from experiments.metrics import spent
from experiments.streams import Stream
from kb_env.types import Episode

#: (busy seconds, measurements) of each device.
Load = Callable[[], Sequence[tuple[float, int]]]


def duration(seconds: float) -> str:
    """Seconds as 42 s, 3:07 or 2:03:09."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class _Tally:
    """What is shown of one policy. Sums, not episodes: there may be ten thousand."""

    count: int = 0
    log: float = 0.0
    tokens: float = 0.0
    money: float = 0.0
    last: str = ""
    best: str = ""
    source: str = ""

    def add(self, episode: Episode) -> None:
        costs = spent(episode)
        self.count += 1
        self.log += math.log(episode.best_speedup)
        self.tokens += costs["tokens"]
        self.money += costs["money"]
        self.last = f"{episode.task} seed {episode.seed}, {episode.ended}"
        self.best, self.source = f"{episode.best_speedup:.3f}", episode.source


class Progress:
    """Shows episodes as they end. ``finished`` are those that a resumed run found; a context manager."""

    def __init__(
        self,
        streams: Sequence[Stream],
        finished: Iterable[Episode],
        load: Load | None = None,
        console: Console | None = None,
    ) -> None:
        self.total = sum(len(stream.tasks) for stream in streams)
        self._planned: dict[str, int] = {}
        for stream in streams:
            self._planned[stream.label] = self._planned.get(stream.label, 0) + len(stream.tasks)
        self._done = {label: _Tally() for label in self._planned}
        for episode in finished:
            self._done[episode.policy].add(episode)
        self._before = self.count
        self._failures = 0
        self._started = time.monotonic()
        self._load = load
        self._console = console or Console(file=sys.stdout, soft_wrap=True)
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(self.table(), console=self._console, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self.table())
            self._live.stop()

    @property
    def count(self) -> int:
        """Episodes finished."""
        return sum(tally.count for tally in self._done.values())

    def episode(self, episode: Episode) -> None:
        self._done[episode.policy].add(episode)
        if self._live is not None:
            self._live.update(self.table())
            return
        best = f"{episode.best_speedup:.3f} {episode.source}"
        self._console.print(
            f"[{self.count}/{self.total}] {episode.task} {episode.policy} seed {episode.seed}: {best} "
            f"({len(episode.steps)} steps), {self._rest()}",
            highlight=False,
            markup=False,
        )

    def failed(self, stream: Stream, why: str) -> str:
        """Show that a stream cannot go on; returns the words."""
        self._failures += 1
        words = f"{stream.label}, seed {stream.seed}, {', '.join(stream.tasks)}: {why}"
        console = self._console if self._live is not None else Console(stderr=True, soft_wrap=True)
        console.print(f"failed: {words}", highlight=False, markup=False)
        return words

    def table(self) -> Table:
        table = Table(title=f"{self.count} of {self.total} episodes, {self._rest()}", caption=self._state())
        for name in ("policy", "episodes", "geomean so far", "last", "best", "tokens", "money"):
            table.add_column(name, justify="left" if name in ("policy", "last") else "right")
        for label, tally in self._done.items():
            mean = f"{math.exp(tally.log / tally.count):.3f} {tally.source}" if tally.count else ""
            table.add_row(
                label, f"{tally.count}/{self._planned[label]}", mean, tally.last, tally.best, f"{tally.tokens:.0f}",
                f"{tally.money:.2f}",
            )  # fmt: skip
        return table

    def _rest(self) -> str:
        """Elapsed and remaining time, from the rate of this run's own episodes."""
        elapsed, made = time.monotonic() - self._started, self.count - self._before
        if not made:
            return f"{duration(elapsed)} so far"
        left = elapsed / made * (self.total - self.count)
        return f"{duration(elapsed)} so far, {duration(left)} to go"

    def _state(self) -> str:
        parts = [f"{self._failures} streams failed"] if self._failures else []
        if self._load is not None and (found := self._load()):
            elapsed = max(time.monotonic() - self._started, 1e-9)
            busy = sum(seconds for seconds, _ in found) / (elapsed * len(found))
            parts.append(
                f"{len(found)} devices {min(busy, 1.0):.0%} busy, {sum(n for _, n in found)} measured"
            )
        return "; ".join(parts)
