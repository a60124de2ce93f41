"""Does what was learned help elsewhere: on the next tasks of a stream, or on another device.

Both play the same policy with and without what it learned and report forward transfer: how much larger
the area under the log of the best so far is with it (see :func:`experiments.metrics.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.metrics import transfer
from experiments.run_folder import RunFolder
from experiments.streams import Conditions, Stream, play_stream
from experiments.workers import WorkerPool
from kb_env.evaluators import Evaluator
from kb_env.types import Episode, KbError

#: What makes the evaluator of one worker.
Make = Callable[[str], Evaluator]


def play_all(
    streams: Sequence[Stream],
    conditions: Conditions,
    folder: RunFolder,
    how: tuple[str, int, Make],
) -> dict[str, Episode]:
    """Every episode of the streams by name; those in the folder are not played again.

    ``how`` is the backend, how many workers, and what makes the evaluator of a single one.

    Raises:
        KbError: if a stream fails; what was finished is kept.
    """
    backend, workers, make = how
    found: dict[str, Episode] = {}
    work = []
    for stream in streams:
        done = folder.finished(stream.names)
        found.update(zip(stream.names, done, strict=False))
        if len(done) < len(stream.tasks):
            work.append((stream, done))
    for stream, outcome in _played(work, conditions, backend, workers, make):
        if isinstance(outcome, str):
            raise KbError(f"{stream.label}, seed {stream.seed}: {outcome}")
        folder.finish(outcome)
        place = next(i for i, name in enumerate(stream.names) if name not in found)
        found[stream.names[place]] = outcome
    return found


def _played(
    work: Sequence[tuple[Stream, list[Episode]]],
    conditions: Conditions,
    backend: str,
    workers: int,
    make: Make,
) -> Iterator[tuple[Stream, Episode | str]]:
    if not work:
        return
    if workers > 1:
        with WorkerPool(backend, workers) as pool:
            yield from pool.run(work, conditions)
        return
    evaluator = make(backend)
    try:
        for stream, done in work:
            for episode in play_stream(stream, evaluator, conditions, done):
                yield stream, episode
    finally:
        evaluator.close()


def stream_plan(policy: str, tasks: Sequence[str], seeds: int) -> tuple[list[Stream], list[Stream]]:
    """Streams over all tasks, each in an order drawn by its seed, and the same episodes without a past."""
    carried = []
    for seed in range(seeds):
        order = tuple(tasks[i] for i in np.random.default_rng(seed).permutation(len(tasks)))
        carried.append(Stream(f"{policy}@stream", policy, seed, order, True))
    alone = [
        Stream(f"{policy}@control", policy, seed, (task,), True) for seed in range(seeds) for task in tasks
    ]
    return carried, alone


def gain(with_it: Sequence[Episode], without: Sequence[Episode], steps: int) -> dict[str, float]:
    """Forward transfer with its interval, as plain data."""
    mean, low, high = transfer(with_it, without, steps)
    return {"mean": mean, "low": low, "high": high, "episodes": len(with_it)}


def continual(
    policy: str,
    tasks: Sequence[str],
    seeds: int,
    conditions: Conditions,
    folder: RunFolder,
    how: tuple[str, int, Make],
) -> dict[str, Any]:
    """Forward transfer along streams, by thirds of their length; the first task of each has no past."""
    carried, alone = stream_plan(policy, tasks, seeds)
    found = play_all([*carried, *alone], conditions, folder, how)
    control = {(e.task, e.seed): e for stream in alone for name in stream.names for e in [found[name]]}
    facts: dict[str, Any] = {}
    cuts = np.array_split(np.arange(len(tasks)), min(3, len(tasks)))
    for title, places in zip(("first", "middle", "last"), cuts, strict=False):
        mine = [found[stream.names[i]] for stream in carried for i in places]
        facts[title] = gain(mine, [control[e.task, e.seed] for e in mine], conditions.steps)
    mine = [found[name] for stream in carried for name in stream.names[1:]]
    facts["after the first task"] = gain(mine, [control[e.task, e.seed] for e in mine], conditions.steps)
    return facts


def moved(
    policy: str,
    tasks: Sequence[str],
    seeds: int,
    conditions: Conditions,
    out: Path,
    how: tuple[str, int, Make],
) -> dict[str, Any]:
    """Forward transfer to the device of ``how``: with the memory of ``conditions`` and without one.

    The episodes go into ``out``, a run folder of its own: two devices' times are never in one.
    """
    folder = RunFolder(out)
    if not (out / "run.json").exists():
        facts = {"policy": policy, "tasks": list(tasks), "seeds": seeds, "steps": conditions.steps}
        folder.begin({"args": {**facts, "backend": how[0]}})
    plans = [
        (f"{policy}@learned", conditions),
        (f"{policy}@control", Conditions(conditions.steps, conditions.budget, conditions.settings)),
    ]
    groups = []
    for label, given in plans:
        streams = [Stream(label, policy, seed, (task,), True) for seed in range(seeds) for task in tasks]
        groups.append(list(play_all(streams, given, folder, how).values()))
    learned, control = groups
    found: dict[str, Any] = {"device": learned[0].device, "source": learned[0].source}
    return found | gain(learned, control, conditions.steps)
