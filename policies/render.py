"""Facts to words: the one place where prompts are worded, a function a fact.

Each function returns a part; :func:`fitted` puts parts together within a token budget and says what
it left out. Candidate text is fenced and quoted as data; nothing in it can close its fence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kb_env.types import PROFILE_NAMES, Episode, Profile, Status, StepRecord
from memory.entries import Recollection
from memory.knowledge import Posterior
from policies.fitting import CHARACTERS_PER_TOKEN as CHARACTERS_PER_TOKEN
from policies.fitting import Part as Part
from policies.fitting import fenced, first_line, fitted, listed, numbered
from policies.fitting import fit as fit
from policies.fitting import shortened as shortened
from policies.fitting import tokens_of as tokens_of
from policies.situation import observed_profile

ROLE = (
    "You optimize CUDA programs. Each answer is one change to the current program; it is compiled, checked against "
    "a reference on many inputs, and timed. Only verified speed counts. Keep the entry function's name and arguments."
)

ANSWER_FORMAT = """Say in one or two sentences what you change and why, then give the change as one or more blocks:
<<<<<<< SEARCH
lines copied exactly from the current program (without the line numbers), enough to be unique
=======
the lines that replace them
>>>>>>> REPLACE
Or give the whole new program in one ```cuda fence. Answer `revert` to go back to the best program, `submit` to stop."""


@dataclass(frozen=True)
class Prompt:
    """A whole request and where its tokens go; ``Instructions`` are what is the same in every request."""

    messages: list[dict[str, str]]
    tokens: Mapping[str, int]


def prompt(parts: Sequence[Part], budget: int, role: str = ROLE, form: str = ANSWER_FORMAT) -> Prompt:
    """The request for an answer of ``form``, its parts within ``budget`` tokens."""
    found = fitted(parts, budget)
    messages = [
        {"role": "system", "content": role},
        {"role": "user", "content": f"{found.text}\n\n{form}"},
    ]
    return Prompt(messages, {"Instructions": tokens_of(role) + tokens_of(form), **found.tokens})


def source_part(text: str, title: str = "Current program") -> Part:
    return Part(title, fenced(numbered(text)), 0, 12_000)


def task_part(observation: Mapping[str, Any]) -> Part:
    return Part("Task", str(observation["task"]), 1, 1500)


def standing_part(observation: Mapping[str, Any]) -> Part:
    """Where the episode stands: how fast the current program is, the best one, and what is left."""
    speed, best = (float(np.max(observation[name])) for name in ("speedup", "best_speedup"))
    lines = [f"{float(np.max(observation['steps_left'])):.0f} steps are left. Best so far: {best:.3f} times."]
    if speed > 0:
        lines.append(f"The current program runs {speed:.3f} times as fast as the initial one.")
    if str(observation["source"]) != str(observation["best_source"]):
        lines.append("The current program is not the best one; `revert` goes back to that.")
    return Part("Standing", " ".join(lines), 1, 200)


def feedback_part(observation: Mapping[str, Any], finish: str = "") -> Part:
    """What came of the last step; ``finish`` is how the last answer ended."""
    text = feedback_words(str(observation["feedback"]))
    cut_off = (
        "\nYour last answer was cut off at its length limit: keep it short." if finish == "length" else ""
    )
    return Part("Outcome of the last step", f"{fenced(text, '')}{cut_off}", 2, 1500)


def feedback_words(feedback: str) -> str:
    """The environment's facts, without the profile (it has a part of its own) and a compiler's chatter."""
    if feedback.startswith("BUILD_FAILED"):
        return compile_words(feedback)
    return "\n".join(line for line in feedback.splitlines() if not line.startswith("Profile ("))


#: Lines of a compiler's log that open a message, and most errors that are told.
_ERROR = re.compile(r"\b(?:fatal )?error\b|undefined reference|unresolved extern", re.IGNORECASE)
_MESSAGE = re.compile(r"\S+\(\d+\): |\S+:\d+:(?:\d+:)? |\w*(?:nvcc|ptxas|ld|fatbinary)\b.*: ")
MOST_ERRORS = 6


def compile_words(feedback: str) -> str:
    """A failed build's log cut to its errors with the lines quoted below each; what is left out is counted."""
    head, _, log = feedback.partition(": ")
    lines = re.sub(r"^\S*/(?=[\w.-]+[(:]\d)", "", log, flags=re.MULTILINE).splitlines()
    lines = [line for line in lines if not re.match(r"\d+ errors? detected", line)]
    kept: list[str] = []
    errors, inside = 0, False
    for line in lines:
        if _ERROR.search(line) and _MESSAGE.match(line):
            errors += 1
            inside = errors <= MOST_ERRORS
        elif not line.strip() or _MESSAGE.match(line):
            inside = False
        if inside:
            kept.append(line)
    if not kept:
        return feedback
    rest = sum(1 for line in lines if line.strip()) - len(kept)
    note = [f"({errors} errors in all; {rest} other lines left out)"] if rest else []
    return "\n".join([f"{head}:", *kept, *note])


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
    """One earlier step: what was done and what came of it, in the words of others where they are fenced."""
    technique = str(step.notes.get("technique", ""))
    said = [] if technique else [first_line(step.action, 100) or "(empty answer)"]
    if step.status is Status.TIMED and step.speedup is not None:
        outcome = f"verified, {step.speedup:.3f} times as fast as the initial program"
    else:
        outcome = str(step.status)
        said.append(first_line(step.feedback, 200))
    head = f"{step.index + 1}. {technique or 'edit'}: {outcome}"
    return "\n".join([head, *(fenced(line, "") for line in said)])


def history_part(history: Episode, last: int = 12) -> Part:
    """The last steps; how many came before them is said."""
    before = max(0, len(history.steps) - last)
    lines = [f"({before} earlier steps left out)"] if before else []
    lines += [step_words(step) for step in history.steps[before:]]
    return Part("Steps so far", "\n".join(lines), 4, 1200)


def recollection_words(item: Recollection) -> str:
    """A remembered step: where, what, and what came of it."""
    record = item.record
    outcome, said = f"failed, {record.status}", [first_line(record.message, 160)]
    if record.gain is not None:
        outcome, said = f"{math.exp(record.gain):.2f} times as fast ({record.source})", []
    what = record.technique or "edit"
    head = f"- {record.task} on {record.device} (similarity {item.similarity:.2f}), {what}: {outcome}"
    said.append(shortened(record.action, 220))
    return "\n".join([head, *(fenced(text, "") for text in said)])


def recollections_part(found: Sequence[Recollection]) -> Part:
    words = listed([recollection_words(item) for item in found], 2500)
    return Part("Similar situations remembered", words, 6, 2500)


def ranking_words(item: Posterior, guidance: str) -> str:
    tried = f"{item.count:.0f} verified and {item.failures} failed tries here"
    gain = f"expected {math.exp(item.mean):.2f} times, verified {item.verified:.0%}"
    return f"- {item.technique}: {gain}; {tried}. {guidance}"


def rankings_part(ranked: Sequence[tuple[Posterior, str]]) -> Part:
    words = listed([ranking_words(*item) for item in ranked], 1500)
    return Part("Techniques by what is known of them", words, 5, 1500)


CROSSOVER_ROLE = (
    f"{ROLE} You are shown a second program for the same task: bring what is good in it into the "
    "current program."
)


def elite_part(speedup: float, profile: Profile | None) -> Part:
    """How a program of a population fares: its speed and what limits it."""
    words = f"\n{profile_words(profile)}" if profile is not None else ""
    text = f"It runs {speedup:.3f} times as fast as the initial one.{words}"
    return Part("Speed and profile of the current program", text, 3, 800)


def mate_part(text: str, speedup: float) -> Part:
    title = f"Second program ({speedup:.3f} times as fast as the initial one)"
    return Part(title, fenced(numbered(text)), 2, 6000)


def population_part(cells: Mapping[str, float]) -> Part:
    """What programs of other kinds have reached, by what limits them."""
    lines = [f"- limited by {cell}: {speedup:.3f} times" for cell, speedup in cells.items()]
    return Part("The best of each kind so far", listed(lines, 400), 5, 400)


def failures_part(failures: Sequence[str]) -> Part:
    """What was tried on this program and failed, the latest first."""
    items = [fenced(shortened(words, 300), "") for words in reversed(failures)]
    return Part("Changes of this program that failed: do not repeat them", listed(items, 1200), 4, 1200)
