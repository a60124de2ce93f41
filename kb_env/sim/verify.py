"""Numbers of a program against the task's reference, on the CPU.

The reference and the comparison run in the evaluator's process, the candidate in the simulator's;
inputs follow from program, task, reset seed and case, so that an evaluation repeats to the bit and
no program can hold the answer to inputs it was not hashed into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kb_env.evaluators import Prepared
from kb_env.sim.client import Client, Failure
from kb_env.sim.wire import Job, Request, Response, close_all, layout, memory_file, shared_map
from kb_env.types import Case, Fault, Status, Task, Verification, digest

if TYPE_CHECKING:  # torch takes seconds to import: only where numbers are checked
    from torch import Tensor

    from kb_env.numerics import Reference

#: Most warp instructions of one check case; honest ones need at most a few per cent of it.
CHECK_BUDGET = 300_000_000
CHECK_SECONDS = 60.0
#: What outputs and workspace hold before a run, in turn: NaN, large finite numbers, all ones.
POISONS = (0xFF, 0x7E, 0x5A)


def checked_cases(task: Task) -> tuple[Case, ...]:
    """The cases whose numbers the simulator checks."""
    return task.check_small or task.check


def case_seed(program_key: str, task_key: str, seed: int, case: str) -> int:
    """Seed of one case's inputs, 62 bits."""
    return int(digest("\0".join((program_key, task_key, str(seed), case)))[:15], 16)


def verify(prepared: Prepared, reference: Reference, client: Client, seed: int) -> Verification | Fault:
    """Run the check cases and compare every output element.

    A program that gives wrong numbers ends as a Verification that is not ok; one that does not
    run to its end as a Fault. The first case that fails ends the check.
    """
    task = prepared.task
    worst, number = 0.0, 0
    for number, case in enumerate(checked_cases(task)):
        poison = POISONS[(number + seed) % len(POISONS)]
        inputs = reference.inputs(case, case_seed(prepared.program.key, task.key, seed, case.name), "cpu")
        outputs = run_case(prepared, case, inputs, client, poison)
        if isinstance(outputs, Fault):
            return outputs
        verdict = _compare(task, case, reference, inputs, outputs, poison)
        if not verdict.ok:
            message = f"{case.name} ({_sizes(case)}): {verdict.message}"
            return Verification(False, verdict.fault, number + 1, message, verdict.worst)
        worst = max(worst, verdict.worst or 0.0)
    return Verification(
        True, None, number + 1, f"{number + 1} cases right, worst {worst:.2g} of the bound", worst
    )


def run_case(
    prepared: Prepared, case: Case, inputs: Mapping[str, Tensor], client: Client, poison: int
) -> dict[str, Tensor] | Fault:
    """All non-scalar arguments after one run of the case's plan, or what stopped it."""
    task = prepared.task
    arrays = [a for a in task.arguments if a.kind != "scalar"]
    given, input_bytes = layout({a.name: a.nbytes(case.sizes) for a in arrays if a.name in inputs})
    wanted, output_bytes = layout({a.name: a.nbytes(case.sizes) for a in arrays})
    source, target = memory_file(input_bytes), memory_file(output_bytes)
    try:
        with shared_map(source, input_bytes) as view:
            for piece in given:
                view[piece.offset : piece.offset + piece.nbytes] = tensor_bytes(inputs[piece.name])
        job = Job(prepared.plans[case.name], given, wanted, poison, 0, CHECK_BUDGET)
        request = Request(1, prepared.ptx, input_bytes, output_bytes, int(CHECK_SECONDS), (job,))
        response = client.ask(request, (source, target), CHECK_SECONDS)
        fault = response_fault(response, case, "verify")
        if fault is not None:
            return fault
        with shared_map(target, output_bytes) as view:
            # Copied out before anything reads it: the child still has the file mapped.
            data = {p.name: view[p.offset : p.offset + p.nbytes] for p in wanted}
    finally:
        close_all((source, target))
    return {a.name: _tensor(data[a.name], a.dtype, a.dims(case.sizes)) for a in arrays}


def response_fault(response: Response | Failure, case: Case, stage: str) -> Fault | None:
    """The Fault of a request for one case; None if it ran."""
    where = f"{case.name} ({_sizes(case)}): "
    if isinstance(response, Failure):
        return Fault(response.status, stage, where + response.message)
    results = response.results
    if len(results) != 1 or results[0].case != case.name:
        return Fault(Status.CRASHED, stage, where + "the simulator process answered for another case")
    if results[0].status is None:
        return None
    try:
        status = Status(results[0].status)
    except ValueError:
        status = Status.CRASHED
    if status not in (Status.CRASHED, Status.TIMED_OUT, Status.REFUSED, Status.WRONG):
        status = Status.CRASHED
    return Fault(status, stage, where + results[0].message[:4000])


def _compare(
    task: Task,
    case: Case,
    reference: Reference,
    inputs: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
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
    found = reference.compare(reference.expected(case, inputs), outputs)
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


def _tensor(data: bytes, dtype: str, dims: tuple[int, ...]) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).view(dims)


def _sizes(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.sizes.items())
