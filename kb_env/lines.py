"""Programs as lines: which are nearest to a search that was not found, and which changed."""

from __future__ import annotations

from rapidfuzz import fuzz, process
from rapidfuzz.distance import LCSseq

#: How much of a long search and of a long line is compared and shown.
_LINES = 8
_CHARACTERS = 160


def nearest_lines(text: str, search: str) -> str:
    """One paragraph: the stretch of ``text`` most like ``search``, with line numbers from 1."""
    lines = [line.rstrip("\r")[:_CHARACTERS] for line in text.split("\n")]
    wanted = [line.rstrip("\r")[:_CHARACTERS] for line in search.split("\n")][:200]
    while len(wanted) > 1 and not wanted[0].strip():
        wanted.pop(0)
    if not any(line.strip() for line in wanted):
        return "It is blank: search for lines of code."
    # The longest line is the most telling: look for it first, then compare whole stretches.
    anchor = max(range(len(wanted)), key=lambda index: len(wanted[index].strip()))
    hits = process.extract(wanted[anchor], lines, scorer=fuzz.ratio, limit=5)
    starts = sorted({max(0, min(index - anchor, len(lines) - 1)) for _, _, index in hits})
    sample = "\n".join(wanted[:_LINES])

    def score(start: int) -> float:
        return fuzz.ratio(sample, "\n".join(lines[start : start + min(len(wanted), _LINES)]))

    best = max(starts, key=score, default=0)
    stretch = lines[best : best + min(len(wanted), _LINES)]
    hint = ""
    if [line.split() for line in stretch] == [line.split() for line in wanted[:_LINES]]:
        hint = " (they differ in white space only)"
    shown = "\n".join(f"{best + offset:5d} | {line}" for offset, line in enumerate(stretch, 1))
    return f"Nearest lines{hint}:\n{shown}"


#: A run of changed lines: (start, end) before and (start, end) after, counted from 0.
Hunk = tuple[int, int, int, int]
#: Pairs of lines up to which programs are aligned line by line (50 MB, 60 ms); beyond, one hunk.
_PAIRS = 400_000_000


def changed_lines(before: list[str], after: list[str], gap: int = 0) -> list[Hunk]:
    """Where two lists of lines differ, in order; hunks at most ``gap`` equal lines apart are joined."""
    if len(before) * len(after) > _PAIRS:
        return _one_hunk(before, after)
    hunks: list[Hunk] = []
    for code in LCSseq.opcodes(before, after):
        if code.tag == "equal":
            continue
        if hunks and code.src_start - hunks[-1][1] <= gap:
            hunks[-1] = (hunks[-1][0], code.src_end, hunks[-1][2], code.dest_end)
        else:
            hunks.append((code.src_start, code.src_end, code.dest_start, code.dest_end))
    return hunks


def _one_hunk(before: list[str], after: list[str]) -> list[Hunk]:
    """All between the equal lines at the start and those at the end."""
    if before == after:
        return []
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    return [(head, len(before) - tail, head, len(after) - tail)]
