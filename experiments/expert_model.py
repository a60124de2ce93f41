"""The scripted expert as a model: it answers the prompts of ``maicrl`` from experiments/expert_moves.py.

It reads prompts as a model would, words and fences, and knows nothing else of the run. It is no
measure of what a language model can do: it shows that everything around a model works.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from experiments.expert_moves import PREDICTIONS, REFUSAL, SCRIPTS, programs
from kb_env.edits import diff_action
from memory.starter import TECHNIQUES
from policies.fitting import unnumbered
from policies.maicrl_words import GAP_ROLE, LOWER_ROLE, PLAN_ROLE
from policies.moves import moves

#: Techniques of the catalogue of transforms that the expert proposes besides its script.
GENERIC = ("qualifiers", "launch bounds", "constants", "read-only loads")
#: (task, program that failed): the program that repairs it. Other failures are given up.
REPAIRS = {("histogram", "misspelt"): "strided", ("layernorm", "misspelt"): "shuffled"}
#: A program this similar to a scripted one is taken for it (after an edit of the catalogue, say).
ALIKE = 0.6

_TASK = re.compile(r"^## Task\n(\w+):", re.MULTILINE)
_PROGRAM = re.compile(r"^## Current program\n(`{3,})cuda\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
_TECHNIQUE = re.compile(r"^Apply this technique: (.+)$", re.MULTILINE)
_ROW = re.compile(
    r"^- (?P<technique>.+?) in (?P<signature>\S+): predicted .+?, (?:measured|modelled) (?P<found>[\d.]+) times "
    r"\((?P<count>\d+) verified, \d+ failed\); now believed (?P<believed>[\d.]+) times$",
    re.MULTILINE,
)
_BELIEF = re.compile(
    r"^- \[(?P<name>\w{8})\] belief, (?P<technique>.+?)(?: in (?P<signature>\S+))?: (?P<value>[\d.]+) times",
    re.MULTILINE,
)


class Expert:
    """Answers one request at a time; keeps no state between them."""

    def __call__(self, request: Mapping[str, Any]) -> str:
        role, prompt = str(request["messages"][0]["content"]), str(request["messages"][1]["content"])
        if role == GAP_ROLE:
            return gaps(prompt)
        task, program = _TASK.search(prompt), _PROGRAM.search(prompt)
        if task is None or program is None or task[1] not in SCRIPTS:
            return "I do not know this task."
        text = unnumbered(program[2])
        if role == PLAN_ROLE:
            return plan(task[1], text)
        technique = _TECHNIQUE.search(prompt)
        if role != LOWER_ROLE or technique is None:
            return "I do not know what is asked."
        return lower(task[1], text, technique[1], "## Failed attempt" in prompt)


def nearest(task: str, text: str) -> str:
    """The scripted program that a text is, or is most like; empty if it is like none."""
    known = programs(task)
    for name, other in known.items():
        if other.strip() == text.strip():
            return name
    lines = text.splitlines()
    ratios = {
        name: difflib.SequenceMatcher(None, lines, other.splitlines(), False).ratio()
        for name, other in known.items()
        if not name.startswith("wrong/")
    }
    best = max(ratios, key=lambda name: ratios[name])
    return best if ratios[best] >= ALIKE else ""


def offers(task: str, text: str) -> list[str]:
    """Techniques that the expert can apply here: those of its script first, then of the catalogue."""
    here = nearest(task, text)
    scripted = [technique for start, technique, _ in SCRIPTS[task].moves if start == here]
    possible = {move.technique for move in moves(text)}
    generic = [name for name in GENERIC if name in possible and name not in scripted]
    return [*scripted[:5], *generic[: max(1, 4 - len(scripted))]]


def plan(task: str, text: str) -> str:
    items = [
        {
            "technique": technique,
            "why": "textbook",
            "predicted_speedup": PREDICTIONS[technique],
            "guidance": TECHNIQUES[technique],
        }
        for technique in offers(task, text)
    ]
    return json.dumps({"plan": items})


def lower(task: str, text: str, technique: str, failed: bool) -> str:
    """An answer as models give them: a sentence, and blocks or a whole file."""
    here, known = nearest(task, text), programs(task)
    ends = [end for start, name, end in SCRIPTS[task].moves if start == here and name == technique]
    if ends:
        end = ends[0]
        if failed:
            end = REPAIRS.get((task, end), REFUSAL)
        return "submit" if end == REFUSAL else f"I apply {technique}.\n{diff_action(text, known[end])}"
    found = [move.text for move in moves(text) if move.technique == technique]
    if failed or not found:
        return "submit"
    return f"I apply {technique}.\n{diff_action(text, found[0])}"


def gaps(prompt: str) -> str:
    """The gap analysis: believe what was measured, take back beliefs that it contradicts, and one mistake."""
    rows = [match.groupdict() for match in _ROW.finditer(prompt)]
    beliefs = [match.groupdict() for match in _BELIEF.finditer(prompt)]
    found = []
    for row in rows:
        measured, believed = float(row["found"]), float(row["believed"])
        if not 0.2 <= measured <= 8.0:
            continue
        wrong = [
            item["name"]
            for item in beliefs
            if item["technique"] == row["technique"]
            and (item["signature"] or row["signature"]).split("+")[0] == row["signature"].split("+")[0]
            and float(item["value"]) > 1.5 * measured
        ]
        if wrong or not 0.8 < measured / believed < 1.25:
            found.append(_operation("adjust", row, speedup=measured, replaces=wrong))
    if rows:
        most = max(rows, key=lambda row: int(row["count"]))
        found.append(_operation("adjust", most, speedup=8.0))  # a mistake: to be rejected
        text = f"{most['count']} tries gave {most['found']} times on average."
        found.append(_operation("note", most, text=text))
    return json.dumps({"operations": found[-12:]})


def _operation(kind: str, row: Mapping[str, str], **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"into": "", "speedup": None, "text": "", "replaces": []}
    return {"op": kind, "technique": row["technique"], "signature": row["signature"], **empty, **more}
