"""The textual gradient of ``maicrl``: after a round, what the knowledge base should believe otherwise.

In the words of KernelBlaster (arXiv 2602.14293) theta' = Update(theta, Gap(Eval(D, theta))), each part live:

- policy evaluation: where predictions missed, from the numbers alone, and off-policy what the draws of
  the knowledge base would have gained before and after;
- gap analysis: the model is shown the worst and the best cases with their changes and profiles;
- parameter update: checked operations on the knowledge base, each tried on its own.

The round's later steps are shown to nobody: an operation is kept only if the knowledge base, which has
not seen them either, predicts them no worse with it than without; what changes predictions, but none
of a later step, could not be tested and is not kept. What is kept, what is rejected and with which
scores are log records; :func:`revert` takes an update back.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kb_env.edits import diff_action
from kb_env.types import Episode, KbError
from memory.entries import Experience, Forget, Operation, Recollection
from memory.knowledge import Knowledge
from memory.operations import applies
from memory.signature import signature
from memory.store import Memory, episode_key
from policies.chat import BudgetSpent, Chat
from policies.maicrl_answers import ask_checked, one_line, technique_name
from policies.maicrl_evaluation import SHOWN, evaluate, extremes, miss_words, split_steps
from policies.maicrl_updates import UPDATE_SCHEMA, Context, read_update, words_of
from policies.maicrl_words import case_words, gap_prompt
from policies.maicrl_worth import choices_of, worth


@dataclass(frozen=True)
class Outcome:
    """What became of one update. Scores are mean log predictive densities of the ``tested`` later steps."""

    kept: tuple[Operation, ...]
    rejected: tuple[Operation, ...]
    before: float
    after: float
    tested: int
    fault: str = ""
    #: of the later draws: logged mean log gain, and as estimated for the knowledge base before and after
    worth: tuple[float, float, float] = (math.nan, math.nan, math.nan)


def knowledge_without(memory: Memory, hidden: Sequence[Experience]) -> Knowledge:
    """The knowledge base as it would be if the hidden experiences had not been made."""
    unseen = {item.id for item in hidden}
    entries = list(memory.entries())
    unseen |= {item.target for item in entries if isinstance(item, Forget)}
    found = Knowledge()
    found.add(
        item
        for item in entries
        if isinstance(item, Operation) or (isinstance(item, Experience) and item.id not in unseen)
    )
    return found


class Gradient:
    """One round's learning. The memory must hold the round's episodes already."""

    def __init__(self, chat: Chat, memory: Memory, raw_profile: bool = False) -> None:
        self.chat, self.memory, self.raw_profile = chat, memory, raw_profile

    def update(self, episodes: Sequence[Episode]) -> Outcome:
        """Evaluate, analyse, update. A model that fails or says nothing usable changes nothing.

        Raises:
            KbError: if the model's endpoint cannot be used.
        """
        made_up = [step for episode in episodes for step in episode.steps if step.notes.get("guidance")]
        self._define([(str(s.notes["technique"]), str(s.notes["guidance"])) for s in made_up])
        keys = tuple(dict.fromkeys(map(episode_key, episodes)))
        experiences = [item for item in self.memory.of_episodes(keys) if item.technique]
        shown, later = split_steps(experiences)
        knowledge = knowledge_without(self.memory, later)
        before = knowledge.log_score(later)
        if not shown:
            return Outcome((), (), before, before, len(later), "no step names a technique")
        # Beliefs are about one GPU and kind of time: the one that most of the round was played on.
        (place, _), *_ = Counter((item.device, item.source) for item in shown).most_common(1)
        context = Context.of(knowledge, *place, self._number(), keys)
        messages = gap_prompt(*self._told(shown, knowledge, context), self.chat.prompt_tokens).messages
        try:
            proposed, fault = ask_checked(
                self.chat, messages, UPDATE_SCHEMA, lambda raw, strict: read_update(raw, context, strict)
            )
        except BudgetSpent as spent:
            proposed, fault = None, str(spent)
        draws = [choice for episode in episodes for choice in choices_of(episode, SHOWN)]
        first = worth(draws, knowledge)
        outcome = try_out(proposed or [], knowledge, later, fault)
        estimates = first.logged, first.estimated, worth(draws, knowledge).estimated
        outcome = replace(outcome, worth=estimates)
        self._write(outcome, context)
        return outcome

    def _define(self, techniques: Sequence[tuple[str, str]]) -> None:
        """Take up the techniques that plans have made up; the first to define one is believed."""
        knowledge = self.memory.knowledge
        found: dict[str, Operation] = {}
        for name, guidance in techniques:
            if not knowledge.guidance(name) and name not in found:
                found[name] = Operation("technique", technique_name(name), one_line(guidance), author="plan")
        self.memory.add(found.values())

    def _number(self) -> int:
        return 1 + sum(item.kind == "update" for item in self.memory.knowledge.history())

    def _told(
        self, shown: Sequence[Experience], knowledge: Knowledge, context: Context
    ) -> tuple[str, str, dict[str, str]]:
        """What the model is told: the evaluation, what may be replaced, and cases."""
        table = "\n".join(miss_words(miss) for miss in evaluate(shown, knowledge)[:24])
        held = {signature(item.profile) for item in shown}
        replaceable = [
            item for item in context.replaceable.values() if any(applies(item.signature, one) for one in held)
        ]
        worst, best = extremes(shown)
        cases = {
            title: "\n\n".join(self._case(item) for item in items)
            for title, items in (("Cases that came out worst", worst), ("Cases that came out best", best))
        }
        return table, "\n".join(map(words_of, replaceable[-30:])), cases

    def _case(self, item: Experience) -> str:
        before = self.memory.program(item.before)
        after = self.memory.program(item.after) if item.after else None
        diff = item.action
        if before is not None and after is not None:
            diff = diff_action(before.text, after.text)
        return case_words(Recollection(item, 1.0, before, after), diff, self.raw_profile)

    def _write(self, outcome: Outcome, context: Context) -> None:
        """Everything into the log: what holds, what was rejected, and the update that they belong to."""
        facts = {
            "before": outcome.before,
            "after": outcome.after,
            "tested": outcome.tested,
            "fault": outcome.fault,
            "worth": [None if math.isnan(value) else value for value in outcome.worth],
            "kept": [item.id for item in outcome.kept],
            "rejected": [item.id for item in outcome.rejected],
        }
        record = Operation(
            "update",
            f"update {context.number}",
            json.dumps(facts),
            provenance=context.episodes,
            author=context.author,
            time=context.time,
        )
        # The record first: whatever a kill leaves of the append, :func:`revert` finds it named.
        self.memory.add([record, *outcome.kept, *outcome.rejected])


def try_out(
    proposed: Sequence[Sequence[Operation]],
    knowledge: Knowledge,
    later: Sequence[Experience],
    fault: str = "",
) -> Outcome:
    """Keep the proposals, one after the other, with which the later steps are predicted no worse.

    Each proposal is one or more operations that belong together. One that is to change predictions
    has to change, for the better, those of later steps: else nothing has tested it.
    """
    first = score = knowledge.log_score(later)
    kept: list[Operation] = []
    rejected: list[Operation] = []
    tried: set[str] = set()
    for group in proposed:
        if tried & {item.id for item in group if item.kind != "technique"}:
            continue  # the same again: it has been decided
        tried |= {item.id for item in group}
        predicts = any(_predicts(item, knowledge) for item in group)
        knowledge.add(group)
        now = knowledge.log_score(later)
        if now > score or (now == score and not predicts):
            score = now
            kept += group
            continue
        knowledge.add([Operation("retract", "", replaces=tuple(item.id for item in group), time=math.inf)])
        rejected += [refused(item, score, now) for item in group]
    return Outcome(tuple(kept), tuple(rejected), first, score, len(later), fault)


def _predicts(item: Operation, knowledge: Knowledge) -> bool:
    """Whether an operation is to change predictions: by itself, or by what it replaces."""
    kinds = {old.id: old.kind for old in knowledge.live()}
    return item.kind in ("belief", "alias") or any(
        kinds.get(key) in ("belief", "alias") for key in item.replaces
    )


def refused(item: Operation, before: float, after: float) -> Operation:
    """A proposal that was not kept, as history: it replaces nothing and no answer depends on it."""
    facts = {
        "kind": item.kind,
        "signature": item.signature,
        "value": item.value,
        "text": item.text,
        "replaces": item.replaces,
        "score_before": before,
        "score_after": after,
    }
    return Operation(
        "rejected",
        item.subject,
        json.dumps(facts),
        provenance=item.provenance,
        author=item.author,
        time=item.time,
    )


def updates(knowledge: Knowledge) -> list[Operation]:
    """The updates ever made, oldest first; their text holds scores and ids as JSON."""
    return [item for item in knowledge.history() if item.kind == "update"]


def revert(memory: Memory, name: str) -> Operation:
    """Take back what an update has kept; what it had superseded holds again.

    Raises:
        KbError: if there is no update that goes by this name or the beginning of its id.
    """
    found = [item for item in updates(memory.knowledge) if item.subject == name or item.id.startswith(name)]
    if len(found) != 1:
        known = ", ".join(f"{item.subject} [{item.id[:8]}]" for item in updates(memory.knowledge)) or "none"
        which = "several updates are" if found else "no update is"
        raise KbError(f"{which} called {name!r} in {memory.folder}: there are {known}; an id will do as well")
    kept = tuple(json.loads(found[0].text)["kept"])
    now = max((item.time for item in memory.knowledge.history()), default=0.0) + 1.0
    # The provenance of what it takes back: a reader from whom one is hidden (memory.store) sees neither.
    undo = Operation(
        "retract",
        found[0].subject,
        "reverted",
        replaces=kept,
        provenance=found[0].provenance,
        author="revert",
        time=now,
    )
    memory.add([undo])
    return undo
