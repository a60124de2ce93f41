"""Policy ``maicrl``: memory-augmented in-context reinforcement learning.

The method of KernelBlaster (arXiv 2602.14293) as its paper means it. The policy's parameters are the
text and numbers of the knowledge base. At each step the state is found numerically (the profile's
signature and the program); the memory recalls similar situations and ranks techniques by their
posterior; the model proposes a plan from them; one technique is drawn by chance and the model lowers
it to edits. A failed edit is repaired up to ``repairs`` times, each try a step. An episode is several
trajectories from one start, whose slower steps are kept since they may prepare faster ones; the
environment keeps the best program. What is learned after a round is in policies/maicrl_gradient.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.edits import diff_action
from kb_env.types import Episode, Task
from memory.entries import Holdout, Situation
from memory.knowledge import Knowledge
from memory.signature import signature
from memory.store import Memory, task_scale
from policies.chat import BudgetSpent, Chat, Settings, chat_of
from policies.maicrl_answers import PLAN_SCHEMA, ask_checked, one_line, read_plan
from policies.maicrl_choice import Candidate, Proposal, believe, choose, log_of
from policies.maicrl_course import Course
from policies.maicrl_gradient import Gradient
from policies.maicrl_words import (
    Attempt,
    Lore,
    Place,
    lower_prompt,
    plan_prompt,
    technique_part,
)
from policies.render import Prompt
from policies.situation import hiding, observed_profile, recalled
from policies.turn import DECLINED, NO_EDIT, cost_notes, lowered, sum_parts

#: What is tried without a plan: the model's own idea.
OWN_IDEA = Proposal("own idea", guidance="Make the change that you think gains most.")


@dataclass(frozen=True)
class Options:
    """``choose`` is ``thompson`` or ``softmax``; ``ranked`` and ``recollections`` go into each plan's prompt."""

    trajectories: int = 2
    repairs: int = 2
    choose: str = "thompson"
    ranked: int = 12
    recollections: int = 4


@dataclass
class Pending:
    """A drawn technique that is being applied, and its attempts that failed."""

    proposal: Proposal
    failed: list[Attempt] = field(default_factory=list)
    answer: str = ""
    fault: str = ""


class Maicrl:
    """``chat`` may be settings to make one of; else ``model`` and ``base_url`` name it.

    ``raw_profile`` leaves the words about the profile out of prompts, ``gradient=False`` the learning
    after a round: both are for ablations.
    """

    name = "maicrl"

    def __init__(
        self,
        model: str = "",
        base_url: str | None = None,
        chat: Chat | Settings | None = None,
        memory: Memory | None = None,
        holdout: Holdout = Holdout(),
        raw_profile: bool = False,
        gradient: bool = True,
        options: Options = Options(),
    ) -> None:
        self.chat = chat_of(chat, model, base_url)
        self.memory, self.options = hiding(memory, holdout), options
        self.raw_profile, self.gradient = raw_profile, gradient
        self._rng = np.random.default_rng(0)
        self._task: Task | None = None

    # -- the episode -----------------------------------------------------------------------------

    def begin(self, task: Task, rng: np.random.Generator) -> None:
        self._task, self._rng = task, rng
        self.chat.begin(rng)
        self._knowledge = self.memory.knowledge if self.memory is not None else Knowledge()
        self._course: Course | None = None
        self._pending: Pending | None = None
        self._shown: dict[str, list[float | None]] = {}
        self._made_up: dict[str, str] = {}
        self._notes: dict[str, str | float] = {}
        self._prompts: list[Prompt] = []
        self._seen = 0

    def act(self, observation: Mapping[str, Any], history: Episode) -> str:
        before = self.chat.usage
        self._notes = {}
        self._prompts = []
        try:
            action = self._next(observation, history)
        except BudgetSpent as spent:
            self._notes["stopped"] = str(spent)
            action = "submit"
        if self._prompts:
            total = Prompt([], sum_parts(self._prompts))
            self._notes |= cost_notes(total, None, self.chat.usage - before)
        return action

    def _told(self, prompt: Prompt) -> Prompt:
        """The prompt, which is about to be sent, written down for the step's notes."""
        self._prompts.append(prompt)
        return prompt

    def _next(self, observation: Mapping[str, Any], history: Episode) -> str:
        if self._course is None:
            steps = int(np.max(observation["steps_left"]))
            profile = observed_profile(observation)
            self._course = Course(history, profile, steps, self.options.trajectories)
        self._observe(history, self._course)
        while self._pending is None:
            if self._course.spent and not self._course.restart():
                return "submit"
            proposal = self._choose(observation, history)
            if proposal is not None:
                self._pending = Pending(proposal)
            elif not self._course.restart():
                return "submit"
        self._course.taken += 1
        return self._lower(observation)

    def _observe(self, history: Episode, course: Course) -> None:
        """The state after the last step, from what was measured."""
        steps, self._seen = history.steps[self._seen :], len(history.steps)
        pending = self._pending
        if not steps or pending is None:
            return
        gain = course.advance(steps[-1])
        self._shown.setdefault(pending.proposal.technique, []).append(gain)
        if gain is None:
            pending.failed.append(Attempt(pending.answer, pending.fault or steps[-1].feedback))
        if gain is not None or len(pending.failed) > self.options.repairs or pending.fault == DECLINED:
            self._pending = None

    # -- planning --------------------------------------------------------------------------------

    def _choose(self, observation: Mapping[str, Any], history: Episode) -> Proposal | None:
        """The technique to apply next, drawn from the model's plan; None if it plans nothing."""
        place = self._place()
        lore = self._lore(place, history)
        limits = self.raw_profile, self.chat.prompt_tokens
        known = {belief.technique for belief, _ in lore.ranked} | {
            *self._knowledge.techniques,
            *self._made_up,
        }
        prompt = self._told(plan_prompt(observation, history, place, lore, limits))
        plan, fault = ask_checked(
            self.chat,
            prompt.messages,
            PLAN_SCHEMA,
            lambda raw, strict: read_plan(raw, known, strict),
        )
        if plan is not None and not plan:
            return None
        if plan is None:  # what the knowledge base ranks first does as a plan
            plan = [Proposal(belief.technique) for belief, _ in lore.ranked[:5]] or [OWN_IDEA]
            self._notes["plan_fault"] = one_line(fault)
        drawn, weighed = choose(
            [self._candidate(item, place, history) for item in plan], self._rng, self.options.choose
        )
        self._record(drawn, weighed, place)
        return drawn.proposal

    def _candidate(self, proposal: Proposal, place: Place, history: Episode) -> Candidate:
        prior = self._knowledge.posterior(proposal.technique, place.signature, history.device, history.source)
        shown = self._shown.get(proposal.technique, ())
        return Candidate(proposal, believe(prior, proposal.predicted, shown))

    def _record(self, drawn: Candidate, weighed: Sequence[Candidate], place: Place) -> None:
        """The notes of a choice, so that it can be judged later without having been there."""
        proposal = drawn.proposal
        self._notes |= {
            "propensity": drawn.propensity,
            "candidates": log_of(weighed),
            "chosen_by": self.options.choose,
            "knowledge": self._knowledge.version,
            "why": proposal.why,
        }
        if proposal.predicted is not None:
            self._notes["model_gain"] = math.exp(proposal.predicted)
        if proposal.guidance and proposal is not OWN_IDEA:
            self._made_up[proposal.technique] = proposal.guidance
            self._notes["guidance"] = proposal.guidance
        self._drawn_notes: dict[str, str | float] = {
            "technique": proposal.technique,
            "signature": place.signature,
            "predicted_gain": math.exp(drawn.belief.mean),
        }

    def _place(self) -> Place:
        assert self._course is not None
        here = self._course.here
        return Place(here.program.text, here.profile, signature(here.profile))

    def _lore(self, place: Place, history: Episode) -> Lore:
        if self.memory is None or self._task is None:
            return Lore()
        ranked = self._knowledge.rank(place.signature, history.device, history.source)
        ranked = ranked[: self.options.ranked]
        task = self._task
        where = Situation(
            place.source, place.profile, task.family, task.dtype, history.device, task_scale(task)
        )
        return Lore(
            [(belief, self._knowledge.guidance(belief.technique)) for belief in ranked],
            self._knowledge.notes(held=place.signature)[-12:],
            recalled(self.memory, where, self.options.recollections),
        )

    # -- lowering --------------------------------------------------------------------------------

    def _lower(self, observation: Mapping[str, Any]) -> str:
        """The pending technique as an action, by the model."""
        assert self._pending is not None and self._course is not None
        pending, base = self._pending, self._course.here.program
        proposal = pending.proposal
        place = self._place()
        guidance = self._made_up.get(proposal.technique) or self._knowledge.guidance(proposal.technique)
        notes = self._knowledge.notes(proposal.technique, place.signature)[-4:]
        prompt = self._told(
            lower_prompt(
                observation,
                place,
                technique_part(proposal, guidance, notes),
                pending.failed,
                (self.raw_profile, self.chat.prompt_tokens),
            )
        )
        self._notes |= {
            **self._drawn_notes,
            "base_key": base.key,
            "trajectory": float(self._course.number),
            "repair": float(len(pending.failed)),
        }
        answer = self.chat.ask(prompt.messages)[0]
        pending.answer = answer.text
        text, pending.fault = lowered(answer.text, base)
        source = str(observation["source"])
        if text is not None:
            return diff_action(source, text)
        self._notes |= {"edit_fault": one_line(pending.fault), "answer": one_line(answer.text, 2000)}
        # The environment says itself what is wrong with an edit of its current program; of another one
        # it must not try the edit, and a refusal is not to end the episode.
        return answer.text if base.text == source and pending.fault != DECLINED else NO_EDIT

    # -- between episodes ------------------------------------------------------------------------

    def notes(self) -> Mapping[str, str | float]:
        return dict(self._notes)

    def learn(self, episodes: Sequence[Episode]) -> None:
        """The textual gradient, from episodes that the memory holds already; nothing without a memory."""
        if self.gradient and self.memory is not None and not self.memory.frozen and episodes:
            Gradient(self.chat, self.memory, self.raw_profile).update(episodes)

    def save(self, folder: Path) -> None:
        """What is learned is in the memory, on disk already."""

    def load(self, folder: Path) -> None:
        """What is learned is in the memory, on disk already."""
