"""The corpus that the time model is calibrated and judged on: programs that search policies produced.

    kb compare --policies random,hillclimb,tune,recall --tasks all --seeds 1 --steps 10 --backend sim --out runs/corpus
    python -m experiments.sim_corpus --runs runs/corpus

draws, for each task, HELD_OUT and CALIBRATION verified programs of those runs, no two of them with
the same machine code and plan, in the order of a hash of their text: no time, modelled or measured,
has a say. The initial and the right/ programs of each task join the calibration set. Texts go to
``sim_corpus/programs.json.xz``, names and hashes to ``sim_corpus/manifest.json``, whose own hash is
MANIFEST below: a corpus that was changed after the draw is not read.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.run_folder import RunFolder
from kb_env.files import write_atomic
from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import KbError, Program, Task

FOLDER = Path(__file__).parent / "sim_corpus"
#: SHA-256 of manifest.json as drawn, before any measurement and any calibration.
MANIFEST = "a09a58e4f669eab39d6746c526503e41013c596bd95aab087fbf15bbecd0531b"
#: Programs of each task, of those that policies produced.
HELD_OUT, CALIBRATION = 10, 6
_SALT = "kb-env sim corpus 1"


@dataclass(frozen=True)
class Args:
    """Draw the corpus from finished runs."""

    runs: tuple[Path, ...]
    """run folders of kb compare"""
    out: Path = FOLDER
    """folder of the corpus"""


@dataclass(frozen=True)
class Entry:
    """One program of the corpus; ``part`` is ``held-out`` or ``calibration``."""

    task: str
    name: str
    part: str
    text: str


def text_hash(text: str) -> str:
    """SHA-256 of a program's text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def produced(folders: Sequence[Path]) -> dict[str, dict[str, tuple[str, str]]]:
    """By task: (name, text) of every verified step's program, one for each evaluation key."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for folder in folders:
        for episode in RunFolder(folder).episodes():
            first = episode.initial_evaluation
            known = found.setdefault(episode.task, {})
            for step in episode.steps:
                if step.after is None or step.evaluation is None or not step.evaluation.verified:
                    continue
                key = step.evaluation.key
                if key is None or (first is not None and key == first.key):
                    continue
                name = f"{episode.policy}-{episode.seed}-{step.index}"
                known.setdefault(key, (name, step.after.text))
    return found


def draw(programs: dict[str, dict[str, tuple[str, str]]], tasks: Sequence[Task]) -> list[Entry]:
    """The corpus: first of the hash order held out, the next ones for calibration."""
    entries = []
    for task in tasks:
        mine = sorted(
            programs.get(task.name, {}).values(),
            key=lambda item: text_hash(f"{_SALT}\0{task.name}\0{item[1]}"),
        )
        if len(mine) < HELD_OUT + CALIBRATION:
            raise KbError(
                f"the runs hold {len(mine)} distinct verified programs of {task.name}, "
                f"{HELD_OUT + CALIBRATION} are needed: add runs with other seeds"
            )
        for number, (name, text) in enumerate(mine[: HELD_OUT + CALIBRATION]):
            part = "held-out" if number < HELD_OUT else "calibration"
            entries.append(Entry(task.name, name, part, text))
        entries.append(Entry(task.name, "initial", "calibration", task.initial.text))
        for name, program in solutions(task, "right").items():
            entries.append(Entry(task.name, f"right/{name}", "calibration", program.text))
    return entries


def store(entries: Sequence[Entry], folder: Path) -> str:
    """Write texts and manifest; the manifest's hash."""
    texts = {text_hash(entry.text): entry.text for entry in entries}
    packed = lzma.compress(json.dumps(texts, sort_keys=True).encode(), preset=9)
    rows = [
        {"task": e.task, "name": e.name, "part": e.part, "sha256": text_hash(e.text)}
        for e in sorted(entries, key=lambda e: (e.task, e.part, e.name))
    ]
    manifest = json.dumps({"programs": rows}, indent=0).encode() + b"\n"
    write_atomic(folder / "programs.json.xz", packed)
    write_atomic(folder / "manifest.json", manifest)
    return hashlib.sha256(manifest).hexdigest()


def load(folder: Path = FOLDER, expected: str = MANIFEST) -> list[Entry]:
    """The corpus as it was drawn.

    Raises:
        KbError: if a file is missing, or the manifest or a text is not what was drawn.
    """
    try:
        manifest = (folder / "manifest.json").read_bytes()
        texts: dict[str, str] = json.loads(lzma.decompress((folder / "programs.json.xz").read_bytes()))
        rows: list[dict[str, Any]] = json.loads(manifest)["programs"]
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise KbError(
            f"cannot read the corpus in {folder}: {error}; restore it from the repository"
        ) from error
    if hashlib.sha256(manifest).hexdigest() != expected:
        raise KbError(f"{folder}/manifest.json is not the one that was drawn: restore it from the repository")
    return list(_entries(rows, texts))


def _entries(rows: Sequence[dict[str, Any]], texts: dict[str, str]) -> Iterator[Entry]:
    for row in rows:
        text = texts.get(row["sha256"], "")
        if text_hash(text) != row["sha256"]:
            raise KbError(f"the text of {row['task']}/{row['name']} is not the one that was drawn")
        yield Entry(row["task"], row["name"], row["part"], text)


def program(entry: Entry) -> Program:
    """The entry as a program of its task."""
    return Program(entry.task, entry.text)


def main(args: Args) -> int:
    tasks = [load_task(name) for name in builtin_names()]
    entries = draw(produced(args.runs), tasks)
    print(f"{len(entries)} programs; MANIFEST = {store(entries, args.out)!r}")
    return 0


if __name__ == "__main__":
    import tyro

    raise SystemExit(main(tyro.cli(Args)))
