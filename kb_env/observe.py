"""Facts out of records: observation, info and feedback. No prompt stands here; policies word those."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from gymnasium import spaces

from kb_env.edits import PROGRAM_LIMIT
from kb_env.spaces import CodeText
from kb_env.types import PROFILE_NAMES, Evaluation, Status, StepRecord, Task

#: Longest task description, feedback, and message inside it, in characters.
TASK_LIMIT = 20_000
FEEDBACK_LIMIT = 8_000
MESSAGE_LIMIT = 6_000
#: Largest profile value and speedup an observation shows; beyond it is shown as this.
PROFILE_CEILING = 1e9
SPEEDUP_CEILING = 1e6

_TASK = CodeText(TASK_LIMIT)
_SOURCE = CodeText(PROGRAM_LIMIT)
_FEEDBACK = CodeText(FEEDBACK_LIMIT)
_MESSAGE = CodeText(MESSAGE_LIMIT)

ENDED_CODES = {"running": 0.0, "submitted": 1.0, "steps": 2.0, "budget": 3.0}
_FAULT_CODE = 4.0


def observation_space(max_steps: int) -> spaces.Dict:
    """The observation space: the same for every task, finite everywhere."""
    return spaces.Dict(
        {
            "task": CodeText(TASK_LIMIT),
            "source": CodeText(PROGRAM_LIMIT),
            "best_source": CodeText(PROGRAM_LIMIT),
            "feedback": CodeText(FEEDBACK_LIMIT),
            "profile": spaces.Box(0.0, PROFILE_CEILING, (len(PROFILE_NAMES),), np.float32),
            "profile_mask": spaces.MultiBinary(len(PROFILE_NAMES)),
            "speedup": spaces.Box(0.0, SPEEDUP_CEILING, (1,), np.float32),
            "best_speedup": spaces.Box(0.0, SPEEDUP_CEILING, (1,), np.float32),
            "steps_left": spaces.Box(0.0, float(max_steps), (1,), np.float32),
        }
    )


def observation(
    task: Task, source: str, best_source: str, feedback: str, numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """A fresh observation. ``numbers``: evaluation (or None), speedup (or None), best_speedup, steps_left."""
    evaluation: Evaluation | None = numbers["evaluation"]
    values, mask = profile_arrays(evaluation)
    return {
        "task": _TASK.clean(task_text(task)),
        "source": _SOURCE.clean(source),
        "best_source": _SOURCE.clean(best_source),
        "feedback": _FEEDBACK.clean(feedback),
        "profile": values,
        "profile_mask": mask,
        "speedup": _speedup(numbers["speedup"]),
        "best_speedup": _speedup(numbers["best_speedup"]),
        "steps_left": np.array([numbers["steps_left"]], np.float32),
    }


def profile_arrays(evaluation: Evaluation | None) -> tuple[np.ndarray, np.ndarray]:
    """Profile values (float32, 0 where absent) and mask (int8) in the order of PROFILE_NAMES."""
    profile = evaluation.profile if evaluation is not None else None
    raw = np.array(profile.numbers() if profile else [math.nan] * len(PROFILE_NAMES), np.float64)
    mask = np.isfinite(raw)
    values = np.clip(np.where(mask, raw, 0.0), 0.0, PROFILE_CEILING).astype(np.float32)
    return values, mask.astype(np.int8)


def _speedup(value: float | None) -> np.ndarray:
    return np.array([min(value or 0.0, SPEEDUP_CEILING)], np.float32)


def task_text(task: Task) -> str:
    """What the task is, in facts: purpose, signature, types, sizes, tolerance."""
    lines = [f"{task.name}: {task.title}", task.description, f"Entry function: {task.signature}"]
    for argument in task.arguments:
        shape = f"[{', '.join(map(str, argument.shape))}]" if argument.shape else ""
        lines.append(f"  {argument.name}: {argument.kind} {argument.dtype}{shape}")
    lines.append(
        f"Type {task.dtype}, accumulated in {task.accumulate}; workspace {task.workspace_bytes} bytes."
    )
    for label, cases in (("Checked", task.check), ("Timed", task.bench)):
        sizes = "; ".join(", ".join(f"{k}={v}" for k, v in case.sizes.items()) for case in cases)
        lines.append(f"{label} at: {sizes}")
    lines.append(f"Language: {task.language}")
    return "\n".join(lines)


def legible(text: str) -> str:
    """``text`` with U+FFFD for all that a terminal or a page would obey instead of showing it.

    Control characters but line end and tabulator, format characters (U+202E turns the direction of what
    follows; others are not seen at all) and halves of surrogate pairs: categories Cc, Cf and Cs.
    """
    lines = text.replace("\r\n", "\n")
    if lines.isascii() and lines.replace("\n", "").replace("\t", "").isprintable():
        return lines
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else "\ufffd"
        for char in lines
    )


def clean(text: str) -> str:
    """Text that a candidate may have written, cut to a bearable length and made legible."""
    return legible(_MESSAGE.clean(text))


def interval(middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None or low is None or high is None:
        return "not timed"
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def microseconds(evaluation: Evaluation) -> tuple[float, float]:
    """Candidate's and baseline's time: geometric mean over bench cases of the medians; NaN if not timed."""
    if not evaluation.verified or not evaluation.timings:
        return math.nan, math.nan
    return _middle([t.candidate_us for t in evaluation.timings]), _middle(
        [t.baseline_us for t in evaluation.timings]
    )


def _middle(samples: Sequence[Sequence[float]]) -> float:
    if not all(samples):
        return math.nan
    return math.exp(sum(math.log(median(times)) for times in samples) / len(samples))


def evaluation_text(evaluation: Evaluation, cached: bool = False) -> str:
    """How one evaluation ended, in facts."""
    if evaluation.fault is not None:
        fault = evaluation.fault
        return f"{fault.status} at {clean(fault.stage)[:40]}: {clean(fault.message)}"
    candidate, baseline = microseconds(evaluation)
    lines = [
        f"TIMED, {evaluation.source} on {evaluation.device}: speedup over the initial program "
        f"{interval(evaluation.speedup, evaluation.speedup_low, evaluation.speedup_high)}, "
        f"{candidate:.1f} us against {baseline:.1f} us"
    ]
    if cached:
        lines.append("Same machine code and launches as an earlier program: its evaluation stands.")
    if evaluation.limiter:
        lines.append(f"Limited by: {clean(evaluation.limiter)}")
    if evaluation.profile is not None:
        known = zip(PROFILE_NAMES, evaluation.profile.numbers(), strict=True)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in known if math.isfinite(value))
        lines.append(f"Profile ({evaluation.profile.source}): {shown}")
    return "\n".join(lines)


class Absent(np.float64):
    """A NaN that equals other absent values, so that two infos which say the same compare equal.

    Gymnasium's check of deterministic environments compares infos by ``==``, and vector
    environments take numpy scalars for the dtype of their arrays: a plain NaN fails the first.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Absent)

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Absent)

    def __hash__(self) -> int:
        return 0


ABSENT = Absent(math.nan)

INFO_KEYS = (
    "step",
    "status",
    "verified",
    "cached",
    "modelled",
    "speedup",
    "speedup_low",
    "speedup_high",
    "gain",
    "gain_low",
    "gain_high",
    "best_speedup",
    "best_low",
    "best_high",
    "candidate_us",
    "baseline_us",
    "worst_error",
    "registers",
    "shared_bytes",
    "spills",
    "evaluations",
    "ended",
)


def info(
    record: StepRecord | None, evaluation: Evaluation | None, rest: Mapping[str, float]
) -> dict[str, float]:
    """Flat floats under constant keys, NaN where absent: what vector environments can carry.

    ``status`` is the position in :class:`Status`; ``ended`` is 0 running, 1 submitted, 2 steps,
    3 budget, 4 fault of the harness.
    """
    values: dict[str, float | None] = dict.fromkeys(INFO_KEYS, math.nan)
    values["step"] = 0.0
    if record is not None:
        confirmation = record.confirmation
        values["step"] = record.index + 1.0
        values["status"] = float(list(Status).index(record.status))
        values["cached"] = float(record.cached)
        if confirmation is not None:
            values["gain"] = confirmation.speedup
            values["gain_low"], values["gain_high"] = confirmation.speedup_low, confirmation.speedup_high
    if evaluation is not None:
        values["verified"] = float(evaluation.verified)
        values["modelled"] = float(evaluation.source == "modelled")
        values["speedup"] = evaluation.speedup
        values["speedup_low"], values["speedup_high"] = evaluation.speedup_low, evaluation.speedup_high
        values["candidate_us"], values["baseline_us"] = microseconds(evaluation)
        values["worst_error"] = evaluation.verification.worst if evaluation.verification else None
        build = evaluation.build
        values["registers"], values["shared_bytes"] = build.registers, build.shared_bytes
        values["spills"] = build.spills
    values.update(rest)
    return {key: _number(value) for key, value in values.items()}


def _number(value: float | None) -> float:
    return ABSENT if value is None or math.isnan(value) else float(value)


def ended_code(ended: str) -> float:
    return ENDED_CODES.get(ended, _FAULT_CODE)
