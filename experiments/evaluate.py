"""``kb evaluate DIR``: work off a spool of evaluation requests on a machine with the device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kb_env.backends import explain, make_evaluator
from kb_env.spool import SpoolWorker
from kb_env.types import KbError


@dataclass(frozen=True)
class Args:
    """Answer the requests of rollouts run with --backend spool:DIR; many at once may run."""

    folder: Annotated[Path, tyro.conf.Positional]
    """the spool folder, shared with the rollouts, which make it"""
    create: bool = False
    """make the folder, for a worker that starts before its rollouts"""
    backend: str = "auto"
    """auto, gpu, gpu:1, sim, sim:DEVICE or replay:FILE"""
    once: bool = False
    """end when nothing is pending"""
    every: float = 0.5
    """seconds between looks"""


def main(args: Args) -> int:
    if args.backend.startswith("spool"):
        raise KbError("a spool cannot work off a spool: name the device with --backend")
    if not args.create and not (args.folder / "requests").is_dir():
        raise KbError(
            f"{args.folder} is no spool: name the folder of rollouts with --backend spool:DIR, "
            "or add --create to wait for them there"
        )
    evaluator = make_evaluator(args.backend)
    try:
        worker = SpoolWorker(args.folder, evaluator)
        print(f"{args.folder}: {explain(args.backend)}", flush=True)
        total = 0
        while True:
            done = worker.work()
            total += done
            if done:
                print(f"{total} answered", flush=True)
            elif args.once:
                return 0
            else:
                time.sleep(max(args.every, 0.05))
    finally:
        evaluator.close()
