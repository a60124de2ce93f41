"""Build and record: everything about a program that needs no GPU, with each fault as data."""

from __future__ import annotations

import time
from pathlib import Path

from kb_env.build import Built, build
from kb_env.cubin import read_cubin, stable_name
from kb_env.device_answers import DeviceAnswers, answers_for
from kb_env.evaluators import Prepared
from kb_env.plan import LaunchPlan, check_plan, plan_digest
from kb_env.record import record
from kb_env.types import Case, Fault, KbError, Program, Status, Task, digest

#: What device code may call outside itself: printf and assert. No heap, no device-side launches.
DEVICE_CALLS = frozenset({"vprintf", "__assertfail"})


def prepare(
    task: Task,
    program: Program,
    architecture: str,
    store: Path,
    cases: tuple[Case, ...],
    answers: DeviceAnswers | None = None,
) -> Prepared:
    """Build a program and record its plan for each case; results of both are kept in the store.

    ``answers`` is the GPU that device queries are answered for (default: a typical one of the
    architecture). ``Prepared.key`` is the same for programs that differ in comments or layout only.

    Raises:
        KbError: for the harness's own failures only: no compiler, a full disk, no box.
    """
    started = time.monotonic()
    built = build(program, architecture, store)
    seconds = {"build": time.monotonic() - started}
    if built.fault is not None:
        failed = Fault(built.fault, "build", built.result.log)
        return Prepared(task, program, built.result, {}, None, fault=failed, seconds=seconds)
    unfit = _unfit(built, task.workspace_bytes)
    if unfit is not None:
        refused = Fault(Status.REFUSED, "build", unfit)
        return Prepared(task, program, built.result, {}, None, fault=refused, seconds=seconds)
    started = time.monotonic()
    recording = record(task, built, answers or answers_for(architecture), cases, store)
    seconds["record"] = time.monotonic() - started
    fault = recording.fault or _plan_fault(recording.plans, task.workspace_bytes)
    key = None if fault else evaluation_key(built.image, recording.plans)
    plans = {} if fault else recording.plans
    return Prepared(task, program, built.result, plans, key, built.image, built.ptx, fault, seconds)


def _unfit(built: Built, limit: int) -> str | None:
    """What the device code needs that no program may have: functions from elsewhere, too much memory."""
    foreign = sorted(set(built.undefined) - DEVICE_CALLS)
    if foreign:
        return f"device code calls {', '.join(foreign[:5])}: not allowed"
    sections = read_cubin(built.image).sections
    nbytes = sum(section.size for section in sections if section.name.startswith(".nv.global"))
    if nbytes > limit:
        return (
            f"module variables of {nbytes} bytes are over the {limit} bytes of workspace that the task allows"
        )
    return None


def _plan_fault(plans: dict[str, LaunchPlan], limit: int) -> Fault | None:
    for plan in plans.values():
        try:
            check_plan(plan, limit)
        except KbError as error:
            return Fault(Status.REFUSED, "record", f"{error} (case {plan.case})")
    return None


def evaluation_key(image: bytes, plans: dict[str, LaunchPlan]) -> str:
    """Hash of the code and of all plans: equal keys, equal evaluation."""
    parts = [read_cubin(image).digest()]
    parts += [f"{case} {plan_digest(plan, stable_name)}" for case, plan in sorted(plans.items())]
    return digest("\0".join(parts))
