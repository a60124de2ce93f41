"""Facts to words: the one place where prompts are worded, a function a fact.

Each function returns a part; :func:`fit` puts parts together within a token budget and says what
it left out. Candidate text is fenced and quoted as data; nothing in it can close its fence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb_env.types import PROFILE_NAMES, Episode, Profile, Status, StepRecord
from memory.entries import Recollection
from memory.knowledge import Posterior
from policies.situation import observed_profile

#: Characters a token stands for when budgets are planned; servers count for themselves.
CHARACTERS_PER_TOKEN = 3.5

ROLE = (
    "You optimize CUDA programs. Each answer is one change to the current program; it is compiled, checked against "
    "a reference on many inputs, and timed. Only verified speed counts. Keep the entry function's name and arguments."
)

ANSWER_FORMAT = """Say in one or two sentences what you change and why, then give the change as one or more blocks:
<<<<<<< SEARCH
lines copied exactly from the current program, enough to be unique
=======
the lines that replace them
>>>>>>> REPLACE
Or give the whole new program in one ```cuda fence. Answer `revert` to go back to the best program, `submit` to stop."""


@dataclass(frozen=True)
class Part:
    """A titled piece of a prompt. Lower ``rank`` stays longer when space is short; ``limit`` in tokens."""

    title: str
    text: str
    rank: int
    limit: int


def tokens_of(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def shortened(text: str, limit: int) -> str:
    """The text within ``limit`` tokens: its head and tail, and how much was left out between."""
    room = int(limit * CHARACTERS_PER_TOKEN)
    if len(text) <= room:
        return text
    head = room * 2 // 3
    left = len(text) - room
    return f"{text[:head]}\n[... {left} characters left out ...]\n{text[len(text) - (room - head) :]}"


def fit(parts: Sequence[Part], budget: int) -> str:
    """Parts in the order given, within ``budget`` tokens; parts left out are named."""
    kept: dict[int, str] = {}
    left, dropped = budget, []
    for place, part in sorted(enumerate(parts), key=lambda item: item[1].rank):
        if not part.text:
            continue
        text = shortened(part.text, min(part.limit, left))
        if tokens_of(part.text) > left and left < 64:
            dropped.append(part.title)
            continue
        kept[place] = f"## {part.title}\n{text}"
        left -= tokens_of(kept[place])
    note = [f"(left out for lack of space: {', '.join(dropped)})"] if dropped else []
    return "\n\n".join([kept[place] for place in sorted(kept)] + note)


def fenced(text: str) -> str:
    """Text in a fence longer than any it contains."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}cuda\n{text}\n{fence}"


def source_part(text: str, title: str = "Current program") -> Part:
    return Part(title, fenced(text), 0, 12_000)


def task_part(observation: Mapping[str, Any]) -> Part:
    return Part("Task", str(observation["task"]), 1, 1500)


def feedback_part(observation: Mapping[str, Any]) -> Part:
    return Part("Outcome of the last step", str(observation["feedback"]), 2, 1500)


#: Profile field, condition, statement. The first matching statement per field is told.
STATEMENTS: tuple[tuple[str, str, float, str], ...] = (
    ("dram_percent", ">", 70.0, "Device memory bandwidth is nearly used up ({:.0f} %): move fewer bytes."),
    ("dram_percent", "<", 30.0, "Device memory bandwidth is mostly idle ({:.0f} %)."),
    ("tensor_percent", ">", 50.0, "Tensor cores are busy ({:.0f} %)."),
    (
        "fp_percent",
        ">",
        60.0,
        "Floating-point pipes are busy ({:.0f} %): do less arithmetic or use tensor cores.",
    ),
    ("issue_percent", ">", 70.0, "Instruction issue limits ({:.0f} %): fewer instructions per result."),
    (
        "occupancy_percent",
        "<",
        35.0,
        "Few warps are resident ({:.0f} % occupancy): latency is poorly hidden.",
    ),
    ("sectors_per_request", ">", 8.0, "A memory request touches {:.1f} sectors: accesses are not coalesced."),
    ("bank_conflict_ways", ">", 1.5, "Shared-memory accesses conflict {:.1f} ways."),
    ("branch_efficiency_percent", "<", 85.0, "Warps diverge: {:.0f} % branch efficiency."),
    ("spill_bytes", ">", 0.0, "Registers spill {:.0f} bytes per thread to local memory."),
    ("grid_waves", "<", 1.0, "The grid fills {:.2f} waves: part of the GPU idles."),
    ("bytes_over_floor", ">", 1.3, "It moves {:.1f} times the bytes that are necessary: data is read again."),
    ("launches", ">", 1.5, "It launches {:.0f} kernels: fusing saves traffic and launches."),
    ("roofline_percent", ">", 80.0, "It runs at {:.0f} % of the roofline: little is left."),
)


def profile_words(profile: Profile, raw_only: bool = False) -> str:
    """What limits the kernel in statements, with the raw numbers below."""
    said: dict[str, str] = {}
    for name, sign, threshold, statement in STATEMENTS:
        value = getattr(profile, name)
        if (
            name not in said
            and math.isfinite(value)
            and (value > threshold if sign == ">" else value < threshold)
        ):
            said[name] = "- " + statement.format(value)
    numbers = [
        f"{name}={getattr(profile, name):.4g}"
        for name in PROFILE_NAMES
        if math.isfinite(getattr(profile, name))
    ]
    lines = [] if raw_only else list(said.values())
    return "\n".join([*lines, "Numbers: " + ", ".join(numbers)])


def profile_part(observation: Mapping[str, Any], raw_only: bool = False) -> Part:
    profile = observed_profile(observation)
    return Part("Profile of the current program", profile_words(profile, raw_only) if profile else "", 3, 800)


def step_words(step: StepRecord) -> str:
    """One earlier step in a line or two."""
    first = step.action.strip().splitlines()[0][:100] if step.action.strip() else "empty answer"
    what = str(step.notes.get("technique", "")) or first
    if step.status is Status.TIMED and step.speedup is not None:
        return f"{step.index + 1}. {what}: verified, {step.speedup:.3f} times as fast as the initial program"
    reason = step.feedback.strip().splitlines()[0][:200] if step.feedback.strip() else ""
    return f"{step.index + 1}. {what}: {step.status}. {reason}"


def history_part(history: Episode, last: int = 12) -> Part:
    lines = [step_words(step) for step in history.steps[-last:]]
    return Part("Steps so far", "\n".join(lines), 4, 1200)


def recollection_words(item: Recollection) -> str:
    """A remembered step: where, what, and what came of it."""
    record = item.record
    reason = record.message.strip().splitlines()[0][:160] if record.message.strip() else ""
    outcome = f"failed, {record.status}: {reason}"
    if record.gain is not None:
        outcome = f"{math.exp(record.gain):.2f} times as fast ({record.source})"
    what = record.technique or "edit"
    head = f"- {record.task} on {record.device} (similarity {item.similarity:.2f}), {what}: {outcome}"
    return f"{head}\n{shortened(record.action, 220)}"


def recollections_part(found: Sequence[Recollection]) -> Part:
    return Part(
        "Similar situations remembered", "\n".join(recollection_words(item) for item in found), 6, 2500
    )


def ranking_words(item: Posterior, guidance: str) -> str:
    tried = f"{item.count:.0f} verified and {item.failures} failed tries here"
    gain = f"expected {math.exp(item.mean):.2f} times, verified {item.verified:.0%}"
    return f"- {item.technique}: {gain}; {tried}. {guidance}"


def rankings_part(ranked: Sequence[tuple[Posterior, str]]) -> Part:
    return Part(
        "Techniques by what is known of them", "\n".join(ranking_words(*item) for item in ranked), 5, 1500
    )
