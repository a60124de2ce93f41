"""One turn of a policy that asks a language model: its answer as an edit, and what is written down of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kb_env.edits import BadEdit, apply_edits, diff_action, parse_action
from kb_env.types import Program
from policies.budget import Usage
from policies.fitting import first_line, unnumbered
from policies.render import Prompt
from policies.request import Answer

#: The action for an answer that holds no usable edit: it costs a step, like any other failed edit.
NO_EDIT = "The model's answer holds no edit of the program it was asked about."
DECLINED = "the model declined to change the program"
#: Characters of an unusable answer that are kept in the notes.
KEPT = 4000


def lowered(answer: str, base: Program) -> tuple[str | None, str]:
    """The program that an answer makes of ``base``, or None and why there is none.

    Line numbers that the model copied from its prompt are taken away where the answer means nothing
    with them.
    """
    text, fault = _applied(answer, base)
    if text is None or _all_numbered(text):
        plain = unnumbered(answer)
        if plain != answer:
            again, _ = _applied(plain, base)
            return (again, "") if again is not None else (text, fault)
    return text, fault


def _applied(answer: str, base: Program) -> tuple[str | None, str]:
    try:
        parsed = parse_action(answer, base.language)
        if parsed.kind in ("submit", "revert"):
            return None, DECLINED
        return apply_edits(base.text, parsed.edits), ""
    except BadEdit as error:
        return None, f"BAD_EDIT: {error}"


def _all_numbered(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(unnumbered(line) != line for line in lines)


def as_action(answer: str, current: Program) -> str:
    """An answer about the current program as an action: itself, but for copied line numbers."""
    text, fault = lowered(answer, current)
    if text is None or fault == DECLINED:
        return answer
    raw, _ = _applied(answer, current)
    return answer if raw == text else diff_action(current.text, text)


def rebased(answer: str, base: Program, current: str) -> tuple[str, str]:
    """An answer about ``base`` as an action on the ``current`` source, and why it is none (or "")."""
    text, fault = lowered(answer, base)
    return (NO_EDIT, fault) if text is None else (diff_action(current, text), "")


def cost_notes(prompt: Prompt, answer: Answer | None, usage: Usage) -> dict[str, str | float]:
    """What a turn cost: what was counted, and the prompt's estimated tokens by part."""
    parts = ", ".join(f"{title}: {tokens}" for title, tokens in prompt.tokens.items())
    notes: dict[str, str | float] = {
        "requests": float(usage.requests),
        "prompt_tokens": float(usage.prompt_tokens),
        "answer_tokens": float(usage.answer_tokens),
        "money": usage.money,
        "parts": parts,
    }
    return notes | ({"finish": answer.finish} if answer is not None else {})


def sum_parts(prompts: Sequence[Prompt]) -> dict[str, int]:
    """Tokens by part of a turn that took several requests."""
    found: dict[str, int] = {}
    for prompt in prompts:
        for title, tokens in prompt.tokens.items():
            found[title] = found.get(title, 0) + tokens
    return found


def read_parts(notes: Mapping[str, str | float]) -> dict[str, int]:
    """The tokens by part that :func:`cost_notes` wrote down."""
    found = {}
    for item in filter(None, str(notes.get("parts", "")).split(", ")):
        title, _, tokens = item.rpartition(": ")
        found[title] = int(tokens)
    return found


def fault_notes(answer: str, fault: str) -> dict[str, str | float]:
    """What a model said where it gave no edit."""
    kept = (
        answer if len(answer) <= KEPT else f"{answer[:KEPT]} [... {len(answer) - KEPT} characters left out]"
    )
    return {"edit_fault": first_line(fault, 400), "answer": kept}
