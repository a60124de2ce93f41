"""An episode as a table that people read: one row a step, modelled numbers called modelled."""

from __future__ import annotations

from kb_env.lines import changed_lines
from kb_env.observe import interval
from kb_env.types import Episode, Program, StepRecord

_COLUMNS = f"{'step':>4}  {'status':<12}  {'speedup (95 % interval)':<28}  {'best':>8}  {'reward':>8}  edit"


def edit_summary(record: StepRecord) -> str:
    """What a step did to the program, in a few words: ``+3 -1 lines at 14``."""
    word = record.action.strip()[:20].lower()
    if word in ("submit", "revert"):
        return word
    if record.after is None:
        first = record.feedback.split("\n", 1)[0]
        return first if len(first) <= 60 else f"{first[:57]}..."
    return difference_summary(record.before, record.after)


def difference_summary(before: Program, after: Program) -> str:
    """How many lines were added and removed, and where (line numbers of the program before)."""
    hunks = changed_lines(before.text.split("\n"), after.text.split("\n"))
    if not hunks:
        return "no change"
    added = sum(hunk[3] - hunk[2] for hunk in hunks)
    removed = sum(hunk[1] - hunk[0] for hunk in hunks)
    places = ", ".join(str(hunk[0] + 1) for hunk in hunks[:4]) + (", ..." if len(hunks) > 4 else "")
    return f"+{added} -{removed} lines at {places}"


def header(episode: Episode) -> str:
    """Task, device and kind of numbers, and the names of the columns."""
    kind = "MODELLED, not measured" if episode.source == "modelled" else episode.source
    return f"{episode.task} on {episode.device}: {kind} ({episode.trust})\n{_COLUMNS}"


def row(record: StepRecord) -> str:
    """One step as one line."""
    evaluation = record.evaluation
    shown = "-"
    if evaluation is not None and evaluation.verified:
        shown = interval(evaluation.speedup, evaluation.speedup_low, evaluation.speedup_high)
        shown += " modelled" if evaluation.source == "modelled" else ""
    return (
        f"{record.index + 1:>4}  {record.status!s:<12}  {shown:<28}  {record.best_speedup:>8.3f}  "
        f"{record.reward:>+8.3f}  {edit_summary(record)}"
    )


def footer(episode: Episode) -> str:
    """Where the episode stands: the best program's confirmed speedup and why it ended."""
    best = interval(episode.best_speedup, episode.best_low, episode.best_high)
    if episode.best_low is None:
        best = f"{episode.best_speedup:.3f}"
    kind = " modelled" if episode.source == "modelled" else ""
    return f"best{kind} speedup over the initial program: {best}; {episode.ended}"


def table(episode: Episode) -> str:
    """The whole episode."""
    return "\n".join((header(episode), *map(row, episode.steps), footer(episode)))
