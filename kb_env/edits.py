"""Action text to edits to a new program, and back.

What an answer means, in this order:

1. A leading ``<think>...</think>`` is skipped.
2. If it holds SEARCH/REPLACE blocks, all of them are applied to the current program, at once and
   all or none; everything around them is prose. A block is three marker lines of equal length::

       <<<<<<< SEARCH
       lines to find, exactly once
       =======
       lines to put there
       >>>>>>> REPLACE

   Markers have seven signs, or more where the text itself holds such lines. An empty search stands
   for the whole file. A search that occurs both as whole lines and inside lines means the whole
   lines. Replacing whole lines by nothing takes their line end away as well.
3. Else the last fence (three or more backticks or tildes) that is marked as the program's
   language or not at all is the whole new file. A fence that holds one command is that command.
4. Else the last line that is ``revert`` (go on from the best program) or ``submit`` (end).

Where every line of the program ends the same way (LF or CRLF), blocks take on that line end; in a
file that mixes them a block has to match as it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kb_env.lines import Hunk, changed_lines, nearest_lines
from kb_env.types import Edit

#: Longest action and longest program, in characters.
ACTION_LIMIT = 1_000_000
PROGRAM_LIMIT = 400_000
#: Most blocks in one action, and most occurrences of one search that are looked at.
BLOCK_LIMIT = 200
_MATCH_LIMIT = 10_000
#: Most lines added around a change to make it unique.
_CONTEXT_LIMIT = 40

#: Characters no text of ours holds: controls but for whitespace, and lone surrogates.
FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_SEARCH = re.compile(r"(<{7,}) SEARCH[ \t\r]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_CODE_LANGUAGES = {
    "cuda": ("", "cuda", "cu", "cpp", "c++", "c", "cc", "cxx", "h", "hpp"),
    "torch": ("", "python", "py"),
}
_ALMOST = re.compile(r"[ \t]*<{3,} *SEARCH\b")
_COMMANDS = ("revert", "submit")


class BadEdit(ValueError):
    """An action that cannot be applied; the message is the feedback for it."""


@dataclass(frozen=True)
class Action:
    """A parsed action. ``kind`` is ``edits``, ``file`` (one whole-file edit), ``revert`` or ``submit``."""

    kind: str
    edits: tuple[Edit, ...] = ()


def parse_action(text: str, language: str = "cuda") -> Action:
    """Read an action on a program in ``language``.

    Raises:
        BadEdit: if it is too long, not text, truncated, or holds no edit.
    """
    _check_text(text)
    lines = _answer(str(text)).split("\n")
    edits = _blocks(lines)
    if any(edit.search == "" for edit in edits):
        if len(edits) > 1:
            raise BadEdit("a block with an empty SEARCH replaces the whole file and must be the only block")
        return Action("file", edits)
    if edits:
        return Action("edits", edits)
    if any(_ALMOST.match(line) for line in lines):
        raise BadEdit("a SEARCH line is no marker: it has seven '<' in the first column, then ' SEARCH'")
    file = _whole_file(lines, _CODE_LANGUAGES.get(language, ("",)))
    if file is not None and _command(file) is None:
        return Action("file", (Edit("", file),))
    commands = [word for word in map(_command, lines if file is None else [file]) if word]
    if commands:
        return Action(commands[-1])
    raise BadEdit(
        "no edit found: send SEARCH/REPLACE blocks, the whole file in one fence, 'revert' or 'submit'"
    )


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The program after ``edits``, all of them matched against ``text``.

    Raises:
        BadEdit: naming the block, the reason, and the nearest lines where nothing matches.
    """
    if len(edits) == 1 and edits[0].search == "":
        return _checked_program(edits[0].replace)
    spans = sorted((*_locate(text, edit, number), number) for number, edit in enumerate(edits, 1))
    for (_, end, _, first), (start, _, _, second) in itertools.pairwise(spans):
        if start < end:
            line = text.count("\n", 0, start) + 1
            raise BadEdit(f"blocks {first} and {second} are overlapping at line {line}: join them into one")
    pieces, done = [], 0
    for start, end, replace, _ in spans:
        pieces += [text[done:start], replace]
        done = end
    return _checked_program("".join((*pieces, text[done:])))


def format_edit(edits: Sequence[Edit]) -> str:
    """Action text that :func:`parse_action` reads as exactly these edits."""
    blocks = []
    for edit in edits:
        runs = re.findall(r"^(?:<{7,}|={7,}|>{7,})", f"{edit.search}\n{edit.replace}", re.MULTILINE)
        size = max((len(run) + 1 for run in runs), default=7)
        search = f"{edit.search}\n" if edit.search else ""
        replace = f"{edit.replace}\n" if edit.replace else ""
        blocks.append(f"{'<' * size} SEARCH\n{search}{'=' * size}\n{replace}{'>' * size} REPLACE\n")
    return "\n".join(blocks)


def diff_action(before: str, after: str) -> str:
    """A short action that turns ``before`` into ``after``: blocks where they do, else the whole file."""
    whole = format_edit([Edit("", after)])
    edits = _hunk_edits(before, after)
    if not edits:
        return whole
    try:
        exact = apply_edits(before, edits) == after
    except BadEdit:
        return whole
    action = format_edit(edits)
    return action if exact and len(action) < len(whole) else whole


def _hunk_edits(before: str, after: str) -> list[Edit]:
    """One edit per run of changed lines, each with as many lines around it as make it unique."""
    old, new = before.split("\n"), after.split("\n")
    hunks = changed_lines(old, new, gap=2)
    edits = []
    floor = 0
    for number, hunk in enumerate(hunks):
        ceiling = hunks[number + 1][0] if number + 1 < len(hunks) else len(old)
        for _ in range(_CONTEXT_LIMIT):
            if _stands_alone(f"\n{before}\n", old, new, hunk):
                break
            a, b, c, d = hunk
            if a > floor:
                a, c = a - 1, c - 1
            elif b < ceiling:
                b, d = b + 1, d + 1
            hunk = (a, b, c, d)
        floor = hunk[1]
        edits.append(Edit("\n".join(old[hunk[0] : hunk[1]]), "\n".join(new[hunk[2] : hunk[3]])))
    return edits


def _stands_alone(framed: str, old: list[str], new: list[str], hunk: Hunk) -> bool:
    """Whether the hunk's lines occur once and its replacement is not mistaken for a deletion."""
    search, replace = "\n".join(old[hunk[0] : hunk[1]]), "\n".join(new[hunk[2] : hunk[3]])
    if not search:
        return False
    if not replace and (hunk[2] < hunk[3] or hunk[1] == len(old) or search.endswith("\n")):
        return False
    first = framed.find(f"\n{search}\n")
    return framed.find(f"\n{search}\n", first + 1) < 0


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise BadEdit(f"an action is text, not {type(text).__name__}")
    if len(text) > ACTION_LIMIT:
        raise BadEdit(f"the action has {len(text)} characters, {ACTION_LIMIT} are allowed")
    bad = FORBIDDEN.search(text)
    if bad:
        raise BadEdit(
            f"the action is not plain text: character U+{ord(bad.group()):04X} at position {bad.start()}"
        )


def _checked_program(text: str) -> str:
    if len(text) > PROGRAM_LIMIT:
        raise BadEdit(f"the program would have {len(text)} characters, {PROGRAM_LIMIT} are allowed")
    return text


def _answer(text: str) -> str:
    start = text.lstrip()
    if start.startswith("<think>") and "</think>" in start:
        return start.split("</think>", 1)[1]
    return text


def _command(line: str) -> str | None:
    word = line.strip(" \t\r\n`*.'\"").lower() if len(line) < 40 else ""
    return word if word in _COMMANDS else None


def _blocks(lines: list[str]) -> tuple[Edit, ...]:
    edits: list[Edit] = []
    at = 0
    while at < len(lines):
        match = _SEARCH.match(lines[at])
        if match is None:
            at += 1
            continue
        number, size, newline = len(edits) + 1, len(match[1]), "\r" if lines[at].endswith("\r") else ""
        if number > BLOCK_LIMIT:
            raise BadEdit(f"more than {BLOCK_LIMIT} blocks in one action: send the whole file instead")
        middle = _marker(lines, at + 1, "=" * size, f"{'<' * size} SEARCH")
        end = _marker(lines, middle + 1, f"{'>' * size} REPLACE", f"{'<' * size} SEARCH") if middle else None
        if middle is None or end is None:
            missing = f"{'=' * size}" if middle is None else f"{'>' * size} REPLACE"
            raise BadEdit(f"block {number} (line {at + 1} of the action) is truncated: no line {missing!r}")
        edits.append(Edit(_section(lines, at, middle, newline), _section(lines, middle, end, newline)))
        at = end + 1
    return tuple(edits)


def _marker(lines: list[str], start: int, wanted: str, barred: str) -> int | None:
    """Index of the next line ``wanted``, if it comes before a line ``barred``."""
    for index in range(start, len(lines)):
        line = lines[index].rstrip(" \t\r")
        if line == wanted:
            return index
        if line == barred:
            return None
    return None


def _section(lines: list[str], before: int, after: int, newline: str) -> str:
    text = "\n".join(lines[before + 1 : after])
    return text[: -len(newline)] if newline and text.endswith(newline) else text


def _whole_file(lines: list[str], languages: tuple[str, ...]) -> str | None:
    """Content of the last fence of code, or None; raises BadEdit if that fence is not closed."""
    found: str | None = None
    opened: tuple[str, int, bool] | None = None
    for index, line in enumerate(lines):
        match = _FENCE.match(line.rstrip("\r"))
        if match is None:
            continue
        fence, language = match[1], match[2].strip().lower()
        if opened is None:
            code = language.split(" ")[0].split(":")[0].strip("{}.") in languages
            opened = (fence, index, code)
        elif fence.startswith(opened[0]) and not language:
            if opened[2]:
                found = "".join(f"{item}\n" for item in lines[opened[1] + 1 : index])
            opened = None
    if opened is not None and opened[2]:
        raise BadEdit(
            f"the fence opened in line {opened[1] + 1} of the action is truncated: it is not closed"
        )
    return found


def line_end(text: str) -> str | None:
    """``\\n`` or ``\\r\\n`` if every line of ``text`` ends so; None if it mixes them or has one line."""
    total, crlf = text.count("\n"), text.count("\r\n")
    if not total or 0 < crlf < total:
        return None
    return "\r\n" if crlf else "\n"


def _locate(text: str, edit: Edit, number: int) -> tuple[int, int, str]:
    """Where the one occurrence of ``edit.search`` starts and ends, and the text to put there."""
    search, replace, newline = edit.search, edit.replace, line_end(text)
    if not search:
        raise BadEdit(f"block {number} has an empty SEARCH: only a single block may replace the whole file")
    if newline is not None and line_end(search) != newline:
        search = search.replace("\r\n", "\n").replace("\n", newline)
    if newline is not None and line_end(replace) != newline:
        replace = replace.replace("\r\n", "\n").replace("\n", newline)
    places = _places(text, search)
    whole = [start for start in places if _whole_lines(text, start, start + len(search))]
    if not places:
        raise BadEdit(f"block {number}: SEARCH not found. {nearest_lines(text, search)}")
    if len(places) > 1 and (len(whole) != 1 or len(places) >= _MATCH_LIMIT):
        shown = whole or places
        lines = ", ".join(str(text.count("\n", 0, start) + 1) for start in shown[:5])
        count = f"{'at least ' if len(places) >= _MATCH_LIMIT else ''}{len(shown)}"
        raise BadEdit(f"block {number}: SEARCH has {count} matches (lines {lines}): add lines around it")
    start = whole[0] if whole else places[0]
    end = start + len(search)
    if not replace and whole and not search.endswith("\n"):
        end += 2 if text.startswith("\r\n", end) else 1 if text.startswith("\n", end) else 0
    return start, end, replace


def _places(text: str, search: str) -> list[int]:
    places: list[int] = []
    start = text.find(search)
    while start >= 0 and len(places) < _MATCH_LIMIT:
        places.append(start)
        start = text.find(search, start + 1)
    return places


def _whole_lines(text: str, start: int, end: int) -> bool:
    begins = start == 0 or text[start - 1] == "\n"
    ends = end == len(text) or text[end - 1] == "\n" or text.startswith(("\n", "\r\n"), end)
    return begins and ends
