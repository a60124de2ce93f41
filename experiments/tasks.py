"""``kb tasks``: list the built-in tasks, look at a folder, or run the admission test."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from kb_env.task import builtin_names, load_task, solutions
from kb_env.types import Task


@dataclass(frozen=True)
class Args:
    """List tasks, or admit one."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """built-in names or task folders (default: all built-in tasks)"""
    admit: str | None = None
    """run the admission test of this task: honest results accepted, cheats rejected"""
    json: bool = False
    """print one JSON object as the last line"""


def row(task: Task) -> dict[str, object]:
    sizes = " ".join(f"{key}={value}" for key, value in task.bench[0].sizes.items())
    return {
        "name": task.name,
        "title": task.title,
        "family": task.family,
        "dtype": task.dtype,
        "checks": len(task.check),
        "bench": sizes,
        "right": len(solutions(task, "right")) if task.folder else 0,
        "wrong": len(solutions(task, "wrong")) if task.folder else 0,
    }


def admit(name: str, as_json: bool) -> int:
    from kb_env.admission import admit as run_admission

    admission = run_admission(load_task(name))
    for line in admission.rows:
        print(line)
    print(f"{name}: {'admitted' if admission.ok else 'NOT admitted'}")
    if as_json:
        print(
            json.dumps(
                {"task": name, "admitted": admission.ok, "rows": [str(line) for line in admission.rows]}
            )
        )
    return 0 if admission.ok else 1


def main(args: Args) -> int:
    if args.admit is not None:
        return admit(args.admit, args.json)
    rows = [row(load_task(name)) for name in (args.names or tuple(builtin_names()))]
    shown = [{key: str(value) for key, value in item.items() if key != "title"} for item in rows]
    table = Table(box=None)
    for key in shown[0] if shown else ("name",):
        table.add_column(key, no_wrap=True)
    for item in shown:
        table.add_row(*item.values())
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if args.json:
        print(json.dumps({"tasks": rows}))
    return 0
