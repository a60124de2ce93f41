"""What answers of models cost, and hard limits on it."""

from __future__ import annotations

from dataclasses import dataclass

from kb_env.types import KbError


@dataclass(frozen=True)
class Usage:
    """What answers cost. ``money`` is in the unit of the price table, 0 without one."""

    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    money: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.answer_tokens + other.answer_tokens,
            self.money + other.money,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self + Usage(-other.requests, -other.prompt_tokens, -other.answer_tokens, -other.money)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


class Unanswered(KbError):
    """No answer; ``usage`` is the most that attempts which were lost on the way can have cost."""

    def __init__(self, message: str, usage: Usage = Usage()) -> None:
        super().__init__(message)
        self.usage = usage


class BudgetSpent(Unanswered):
    """A hard limit on requests, tokens or money is reached; what was bought so far is kept."""


class NoAnswer(Unanswered):
    """A request that failed for good."""


@dataclass(frozen=True)
class Limits:
    """Hard limits over the life of a chat, which is an episode; None is no limit."""

    requests: int | None = None
    tokens: int | None = None
    money: float | None = None

    def less(self, used: Usage) -> Limits:
        """What is left after ``used``."""
        return Limits(
            None if self.requests is None else self.requests - used.requests,
            None if self.tokens is None else self.tokens - used.tokens,
            None if self.money is None else self.money - used.money,
        )

    def more(self, freed: Usage) -> Limits:
        return self.less(Usage() - freed)

    def shared(self, count: int) -> Limits:
        """An even share of them for each of ``count``."""
        return Limits(
            None if self.requests is None else self.requests // count,
            None if self.tokens is None else self.tokens // count,
            None if self.money is None else self.money / count,
        )

    def hold(self, used: Usage) -> bool:
        """Whether ``used`` is within all of them."""
        left = self.less(used)
        return all(value is None or value >= 0 for value in (left.requests, left.tokens, left.money))


@dataclass(frozen=True)
class Prices:
    """Money per million tokens, given by the user."""

    prompt: float = 0.0
    answer: float = 0.0

    def usage(self, prompt: int, answer: int) -> Usage:
        """One request with so many tokens."""
        return Usage(1, prompt, answer, (prompt * self.prompt + answer * self.answer) / 1e6)
