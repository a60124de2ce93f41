"""The folder of a run: every episode as msgpack, the best programs and diffs, readable by anyone.

Every file is written to a temporary name, synced and renamed, so that a kill at any moment leaves
the last complete version.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kb_env.files import write_atomic
from kb_env.records import RecordError, pack, unpack
from kb_env.types import Episode, Evaluation, KbError, StepRecord
from kb_env.versions import versions

#: Up to the last @ of a JSON string: a password that should have been quoted is one all the same.
_CREDENTIALS = re.compile(r'://(?:\\.|[^"\\])*@')


def episode_name(task: str, policy: str, seed: int) -> str:
    """File stem of one planned episode."""
    safe = "".join(char if char.isalnum() or char in "._-" else "_" for char in f"{task}-{policy}")
    return f"{safe}-{seed}"


@dataclass(frozen=True)
class Origin:
    """What the times of a run come from: runs never mix two."""

    trust: str
    source: str
    device: str

    def __str__(self) -> str:
        return f"{self.source} times of {self.device} ({self.trust})"


def timeless(episode: Episode) -> bytes:
    """The episode packed without what a clock or a cache says: equal for equal plays of a modelled run."""

    def bare(found: Evaluation | None) -> Evaluation | None:
        if found is None:
            return None
        build = replace(found.build, seconds=0.0, cached=False, artifact=None)
        return replace(found, build=build, seconds={}, health={})

    def step(item: StepRecord) -> StepRecord:
        return replace(
            item, seconds={}, evaluation=bare(item.evaluation), confirmation=bare(item.confirmation)
        )

    first = bare(episode.initial_evaluation)
    return pack(replace(episode, initial_evaluation=first, steps=tuple(map(step, episode.steps))))


def lean(episode: Episode) -> Episode:
    """The episode without texts, profiles and times of cases: what tables and charts need, a tenth of it.

    Of the feedback the first line stays.
    """

    def bare(found: Evaluation | None) -> Evaluation | None:
        if found is None:
            return None
        build = replace(found.build, log="")
        return replace(found, build=build, verification=None, timings=None, profile=None, health={})

    def step(item: StepRecord) -> StepRecord:
        action = item.action if item.action.strip() in ("submit", "revert") else ""
        texts = {"before": nothing, "after": nothing if item.after is not None else None}
        evaluations = {"evaluation": bare(item.evaluation), "confirmation": bare(item.confirmation)}
        said = next(iter(item.feedback.splitlines()), "")[:200]
        notes = {key: value for key, value in item.notes.items() if key != "answer"}
        return replace(item, action=action, feedback=said, notes=notes, **texts, **evaluations)  # type: ignore[arg-type]

    nothing = replace(episode.initial, text="")
    return replace(
        episode,
        initial=nothing,
        best=nothing,
        initial_evaluation=bare(episode.initial_evaluation),
        steps=tuple(map(step, episode.steps)),
    )


def unified_diff(episode: Episode) -> str:
    """The episode's best program against its initial one."""
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(
            episode.initial.text.splitlines(keepends=True),
            episode.best.text.splitlines(keepends=True),
            "initial.cu",
            "best.cu",
        )
    )


class RunFolder:
    """Paths and files of one run.

    ``run.json`` holds the arguments and versions, ``origin.json`` what its times come from,
    ``episodes/`` one msgpack per episode (rewritten after each step), ``best/`` the best program and
    its diff per episode, ``report.html`` the page.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._origin: Origin | None = None

    def begin(self, facts: Mapping[str, object]) -> None:
        """Write the facts; a user name and password inside a URL are left out of them."""
        text = _CREDENTIALS.sub("://", json.dumps(facts, indent=1, default=str))
        write_atomic(self.path / "run.json", text.encode())

    def plan(self, args: Mapping[str, object], resume: bool) -> None:
        """Begin a run planned by ``args``, those that decide results, or go on with the same plan.

        Raises:
            KbError: if the folder holds a run and ``resume`` is not given, or one of another plan.
        """
        if not (self.path / "run.json").exists():
            self.begin({"args": args, "versions": versions()})
        elif not resume:
            raise KbError(f"{self.path} holds a run: add --resume to go on with it, or choose another --out")
        elif self.facts()["args"] != json.loads(json.dumps(args, default=str)):
            raise KbError(f"{self.path} was planned otherwise: repeat its arguments, or choose another --out")

    def facts(self) -> dict[str, object]:
        try:
            loaded = json.loads((self.path / "run.json").read_text())
        except (OSError, ValueError) as error:
            raise KbError(
                f"{self.path} is no run folder ({error}); name one made by kb run or kb compare"
            ) from error
        return dict(loaded)

    def origin(self) -> Origin | None:
        """What the run's times come from; None before its first episode."""
        if self._origin is None:
            try:
                self._origin = Origin(**json.loads((self.path / "origin.json").read_text()))
            except FileNotFoundError:
                for episode in self.episodes():
                    self._origin = Origin(episode.trust, episode.source, episode.device)
                    break
            except (ValueError, TypeError) as error:
                raise KbError(f"{self.path}/origin.json is damaged ({error}): delete it") from error
        return self._origin

    def accept(self, origin: Origin) -> None:
        """Take the run's times to come from ``origin`` from now on.

        Raises:
            KbError: if it holds others: measured and modelled times, or two GPUs', are never compared.
        """
        found = self.origin()
        if found is None:
            write_atomic(self.path / "origin.json", json.dumps(asdict(origin)).encode())
            self._origin = origin
        elif found != origin:
            raise KbError(
                f"{self.path} holds {found}, this would add {origin}: go on with --backend as it was, "
                "or choose another --out"
            )

    def save(self, episode: Episode) -> None:
        """Store the episode as it stands, finished or not.

        Raises:
            KbError: if its times come from elsewhere than the run's.
        """
        self.accept(Origin(episode.trust, episode.source, episode.device))
        name = episode_name(episode.task, episode.policy, episode.seed)
        write_atomic(self.path / "episodes" / f"{name}.msgpack", pack(episode))

    def finish(self, episode: Episode) -> None:
        """Store a finished episode with its best program and diff."""
        name = episode_name(episode.task, episode.policy, episode.seed)
        text = episode.best.text.encode("utf-8", "surrogatepass")
        write_atomic(self.path / "best" / f"{name}.cu", text)
        write_atomic(
            self.path / "best" / f"{name}.diff", unified_diff(episode).encode("utf-8", "surrogatepass")
        )
        self.save(episode)

    def load(self, name: str) -> Episode | None:
        """One finished episode by its stem, or None if it is missing, unfinished or damaged."""
        path = self.path / "episodes" / f"{name}.msgpack"
        if not path.exists():
            return None
        try:
            episode = unpack(Episode, path.read_bytes())
        except RecordError:
            return None
        return None if episode.ended == "running" else episode

    def finished(self, names: Sequence[str]) -> list[Episode]:
        """The finished episodes of ``names`` in order, up to the first that is not."""
        found = []
        for name in names:
            if (episode := self.load(name)) is None:
                break
            found.append(episode)
        return found

    def episodes(self) -> Iterator[Episode]:
        """Every readable episode, in order of file name."""
        for path in sorted((self.path / "episodes").glob("*.msgpack")):
            try:
                yield unpack(Episode, path.read_bytes())
            except RecordError as error:
                raise KbError(
                    f"{path} is damaged ({error}); delete it and run again with --resume"
                ) from error
