"""Races, bounds, uninitialised reads and barrier errors of a program, looked for without a GPU.

The check cases run in the limited child with shadow memory beside every byte (native/sanitize.cpp).
Half of them run their blocks side by side, so that order among blocks cannot hide what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kb_env.evaluators import Prepared
from kb_env.sim.client import Client, Failure
from kb_env.sim.findings import Finding
from kb_env.sim.verify import WAVES, case_seed, checked_cases, response_fault, tensor_bytes
from kb_env.sim.wire import Job, Layout, Request, close_all, freeze, memory_file, shared_map
from kb_env.types import Case, Fault, Status, arithmetic

if TYPE_CHECKING:  # torch takes seconds to import
    from kb_env.numerics import Reference

#: Most warp instructions of one case, and seconds for all of them.
BUDGET = 100_000_000
SECONDS = 240.0
#: What memory that nobody has written holds.
POISON = 0x5A


def small_case(prepared: Prepared) -> Case:
    """The check case that moves the fewest bytes."""
    task = prepared.task
    return min(checked_cases(task), key=lambda case: float(arithmetic(task.bytes_moved, case.sizes)))


def sanitize(
    prepared: Prepared, reference: Reference, client: Client, seed: int = 0, cases: Sequence[Case] = ()
) -> tuple[Finding, ...] | Fault:
    """What is wrong with a program that builds and records, one finding for each kind and line.

    A Fault only if nothing can be said: an unsupported instruction, or a run that took too long.
    """
    task = prepared.task
    cases = tuple(cases) or checked_cases(task)
    arrays = [a for a in task.arguments if a.kind != "scalar"]
    jobs, layout, contents = [], Layout(), []
    for number, case in enumerate(cases):
        tensors = reference.inputs(case, case_seed(prepared.program.key, task.key, seed, case.name), "cpu")
        pieces = layout.add({a.name: a.nbytes(case.sizes) for a in arrays if a.name in tensors})
        contents += [(piece, tensors[piece.name]) for piece in pieces]
        waves = WAVES if number % 2 or len(cases) == 1 else 0
        jobs.append(Job(prepared.plans[case.name], pieces, (), POISON, 0, BUDGET, True, waves))
    source, target = memory_file(layout.nbytes), memory_file(1)
    try:
        with shared_map(source, layout.nbytes) as view:
            for piece, tensor in contents:
                view[piece.offset : piece.offset + piece.nbytes] = tensor_bytes(tensor)
        freeze(source)
        request = Request(3, prepared.ptx, layout.nbytes, 1, int(SECONDS), tuple(jobs))
        response = client.ask(request, (source, target), SECONDS)
    finally:
        close_all((source, target))
    fault = response_fault(response, cases, "sanitize")
    if isinstance(response, Failure):
        return fault or Fault(Status.CRASHED, "sanitize", response.message)
    found = distinct([item for result in response.results for item in result.findings])
    return fault if fault is not None and not found else found


def distinct(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first finding of each kind at each line of each kernel."""
    first: dict[tuple[str, str, int], Finding] = {}
    for item in findings:
        first.setdefault((item.kind, item.kernel, item.line), item)
    return tuple(first.values())
