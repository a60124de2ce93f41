"""Numbers of a program against the task's reference, on the CPU.

The reference and the comparison run in the evaluator's process, the candidate in the simulator's;
inputs follow from program, task, reset seed and case, so that an evaluation repeats to the bit and
no program can hold the answer to inputs it was not hashed into.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kb_env.evaluators import Prepared
from kb_env.sim.client import Client, Failure
from kb_env.sim.wire import (
    HARNESS,
    Job,
    Layout,
    Request,
    Response,
    close_all,
    freeze,
    memory_file,
    shared_map,
)
from kb_env.types import Case, Fault, KbError, Status, Task, Verification, digest

if TYPE_CHECKING:  # torch takes seconds to import: only where numbers are checked
    from torch import Tensor

    from kb_env.numerics import Expected, Reference

#: Most warp instructions of one check case; honest ones need at most a few per cent of it.
CHECK_BUDGET = 300_000_000
CHECK_SECONDS = 60.0
#: Blocks that run side by side, the last one first, in every second case.
WAVES = 128
#: What outputs and workspace hold before a run, in turn: NaN, large finite numbers, all ones.
POISONS = (0xFF, 0x7E, 0x5A)


@functools.cache
def checker_version() -> str:
    """Hash of the code that draws inputs and compares outputs."""
    here = Path(__file__)
    return digest(here.read_bytes() + (here.parents[1] / "numerics.py").read_bytes())


def checked_cases(task: Task) -> tuple[Case, ...]:
    """The cases whose numbers the simulator checks."""
    return task.check_small or task.check


def case_seed(program_key: str, task_key: str, seed: int, case: str) -> int:
    """Seed of one case's inputs, 62 bits."""
    return int(digest("\0".join((program_key, task_key, str(seed), case)))[:15], 16)


def verify(prepared: Prepared, reference: Reference, client: Client, seed: int) -> Verification | Fault:
    """Run the check cases and compare every output element.

    A program that gives wrong numbers ends as a Verification that is not ok; one that does not
    run to its end as a Fault. The first case that fails decides.
    """
    task, cases = prepared.task, checked_cases(prepared.task)
    inputs = [
        reference.inputs(case, case_seed(prepared.program.key, task.key, seed, case.name), "cpu")
        for case in cases
    ]
    poisons = [POISONS[(number + seed) % len(POISONS)] for number in range(len(cases))]
    with ThreadPoolExecutor(1) as pool:  # the expected results are computed while the child runs
        expected = [pool.submit(reference.expected, *pair) for pair in zip(cases, inputs, strict=True)]
        outputs, fault = run_cases(prepared, inputs, poisons, client)
        if not outputs and fault is not None:
            pool.shutdown(cancel_futures=True)
            return fault
        worst = 0.0
        for number, after in enumerate(outputs):
            verdict = _compare(
                task, reference, inputs[number], after, expected[number].result(), poisons[number]
            )
            if not verdict.ok:
                pool.shutdown(cancel_futures=True)
                message = f"{cases[number].name} ({_sizes(cases[number])}): {verdict.message}"
                return Verification(False, verdict.fault, number + 1, message, verdict.worst)
            worst = max(worst, verdict.worst or 0.0)
    if fault is not None:
        return fault
    count = len(cases)
    return Verification(True, None, count, f"{count} cases right, worst {worst:.2g} of the bound", worst)


def run_cases(
    prepared: Prepared, inputs: Sequence[Mapping[str, Tensor]], poisons: Sequence[int], client: Client
) -> tuple[list[dict[str, Tensor]], Fault | None]:
    """All non-scalar arguments after each case's run, in order, and what stopped the first that failed."""
    cases = checked_cases(prepared.task)
    arrays = [a for a in prepared.task.arguments if a.kind != "scalar"]
    given, wanted = Layout(), Layout()
    jobs: list[Job] = []
    for case, tensors, poison in zip(cases, inputs, poisons, strict=True):
        sizes = {a.name: a.nbytes(case.sizes) for a in arrays}
        read = given.add({name: size for name, size in sizes.items() if name in tensors})
        waves = WAVES if len(jobs) % 2 else 0  # order among blocks may not matter
        jobs.append(
            Job(prepared.plans[case.name], read, wanted.add(sizes), poison, 0, CHECK_BUDGET, False, waves)
        )
    source, target = memory_file(given.nbytes), memory_file(wanted.nbytes)
    try:
        with shared_map(source, given.nbytes) as view:
            for job, tensors in zip(jobs, inputs, strict=True):
                for piece in job.inputs:
                    view[piece.offset : piece.offset + piece.nbytes] = tensor_bytes(tensors[piece.name])
        freeze(source)
        seconds = int(CHECK_SECONDS)
        request = Request(1, prepared.ptx, given.nbytes, wanted.nbytes, seconds, tuple(jobs))
        response = client.ask(request, (source, target), CHECK_SECONDS)
        fault = response_fault(response, cases, "verify")
        ran = 0 if isinstance(response, Failure) else sum(r.status is None for r in response.results)
        found = []
        with shared_map(target, wanted.nbytes) as view:
            for case, job in zip(cases[:ran], jobs, strict=False):
                # Copied out before anything reads it: the child still has the file mapped.
                data = {p.name: view[p.offset : p.offset + p.nbytes] for p in job.outputs}
                found.append({a.name: tensor_of(data[a.name], a.dtype, a.dims(case.sizes)) for a in arrays})
    finally:
        close_all((source, target))
    return found, fault


def response_fault(response: Response | Failure, cases: Sequence[Case], stage: str) -> Fault | None:
    """The Fault of the first case that did not run; None if all ran."""
    if isinstance(response, Failure):
        return Fault(response.status, stage, response.message)
    names = [result.case for result in response.results]
    failed = [result for result in response.results if result.status is not None]
    complete = len(names) == len(cases) or (len(failed) == 1 and failed[0] is response.results[-1])
    if not complete or names != [case.name for case in cases][: len(names)] or len(failed) > 1:
        return Fault(Status.CRASHED, stage, "the simulator process answered for other cases")
    if not failed:
        return None
    if failed[0].status == HARNESS:
        raise KbError(failed[0].message[:500])
    case = cases[len(names) - 1]
    allowed = (Status.CRASHED, Status.TIMED_OUT, Status.REFUSED, Status.WRONG)
    status = next((s for s in allowed if s.value == failed[0].status), Status.CRASHED)
    return Fault(status, stage, f"{case.name} ({_sizes(case)}): {failed[0].message[:4000]}")


def _compare(
    task: Task,
    reference: Reference,
    inputs: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    expected: Expected,
    poison: int,
) -> Verification:
    changed = [
        a.name
        for a in task.arguments
        if a.kind == "input" and tensor_bytes(after[a.name]) != tensor_bytes(inputs[a.name])
    ]
    if changed:
        message = f"the program changed its input {', '.join(changed)}: write to outputs and workspace only"
        return Verification(False, "input-changed", 1, message)
    outputs = {a.name: after[a.name] for a in task.arguments if a.kind in ("output", "inout")}
    found = reference.compare(expected, outputs)
    if found.ok:
        return Verification(True, None, 1, found.message, found.worst)
    left = _untouched(outputs, poison)
    if left:
        message = f"{found.message}; {left}"
        return Verification(False, "unwritten", 1, message, found.worst)
    return Verification(False, found.fault, 1, found.message, found.worst)


def _untouched(outputs: Mapping[str, Tensor], poison: int) -> str:
    """Which outputs still hold poison, in words; empty if none does."""
    parts = []
    for name, tensor in outputs.items():
        flat = np.frombuffer(tensor_bytes(tensor), np.uint8).reshape(tensor.numel(), -1)
        count = int((flat == poison).all(axis=1).sum())
        if count:
            parts.append(f"{count} of {tensor.numel()} elements of {name} were never written")
    return ", ".join(parts)


def tensor_bytes(tensor: Tensor) -> bytes:
    """The tensor's elements as they lie in memory."""
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def tensor_of(data: bytes, dtype: str, dims: tuple[int, ...]) -> Tensor:
    """A tensor of its own from elements as they lie in memory."""
    import torch

    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).view(dims)


def _sizes(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.sizes.items())
