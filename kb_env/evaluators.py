"""The one Protocol every evaluator follows, and the choice of one by name.

``prepare`` runs on CPUs (build and record; many at once), ``measure`` holds the device. ``evaluate``
is both. An evaluator never raises for what a candidate does wrong: that is data in the Evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kb_env.plan import LaunchPlan
from kb_env.types import BuildResult, Evaluation, Fault, KbError, Program, Task


@dataclass(frozen=True)
class Prepared:
    """A program built and recorded: all that measuring needs, picklable.

    ``plans`` has one plan per check case and bench case, by case name. ``key`` is the hash of cubin
    and plans (None where ``fault`` ended it earlier). ``image`` is the cubin, ``ptx`` its PTX text.
    """

    task: Task
    program: Program
    build: BuildResult
    plans: dict[str, LaunchPlan]
    key: str | None
    image: bytes = b""
    ptx: str = ""
    fault: Fault | None = None
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Purpose:
    """What a measurement is for.

    ``baseline`` is the program the candidate is paired against (None: the task's initial program).
    ``baseline_name`` goes into the timings. ``profile`` asks for a profile as well.
    ``libraries`` names library implementations (eager, compile, max-autotune) to time in a process of their
    own, block by block on the same inputs. ``sanitize`` asks for a search for races and memory faults if the
    program turns out faster than the baseline: a new record. ``seed`` feeds the deterministic evaluators'
    inputs; sealed measurements draw secret seeds.
    """

    baseline: Program | None = None
    baseline_name: str = "initial"
    profile: bool = False
    seed: int = 0
    sanitize: bool = False
    libraries: tuple[str, ...] = ()


class DeviceUnfit(KbError):
    """The device failed its own control: nothing measured on it now would be worth anything."""


@runtime_checkable
class Evaluator(Protocol):
    """``trust`` is ``sealed`` or ``contained``; ``source`` is ``measured`` or ``modelled``."""

    trust: str
    source: str
    device: str

    def prepare(self, task: Task, program: Program) -> Prepared: ...

    def measure(self, prepared: Prepared, purpose: Purpose = Purpose()) -> Evaluation: ...

    def evaluate(self, task: Task, program: Program, purpose: Purpose = Purpose()) -> Evaluation: ...

    def close(self) -> None: ...
