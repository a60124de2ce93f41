"""What is asked of a model: settings, requests, and orders that are sure to fit their limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from policies.budget import BudgetSpent, Limits, Prices, Usage

Message = Mapping[str, str]

#: Bytes a request and each of its messages may have on top of their text: roles, templates.
REQUEST_BYTES, MESSAGE_BYTES = 64, 16
#: No request is sent for an answer of fewer tokens than this (or than the settings ask for).
SMALLEST_ANSWER = 64
#: A count of tokens above this is none: a server may send any number.
MOST_TOKENS = 1 << 40


@dataclass(frozen=True)
class Answer:
    """One completion. ``finish`` is the server's reason (``stop``, ``length``, ``content_filter``, ...)."""

    text: str
    finish: str
    usage: Usage


@dataclass(frozen=True)
class Settings:
    """How to reach a model and how to sample.

    ``model`` is a name at the endpoint, ``local``, ``local:FILE.gguf`` or ``files:DIR``. ``key_file`` wins
    over the environment's OPENAI_API_KEY. ``temperature`` None leaves it to the server. ``prompt_tokens`` is
    what policies plan their prompts for, None what fits the model. ``timeout`` is in seconds a try.
    ``cassette`` keeps answers and gives them again; with ``replay`` nothing else answers.
    """

    model: str
    base_url: str | None = None
    key_file: Path | None = None
    temperature: float | None = None
    reasoning_effort: str | None = None
    answer_tokens: int = 4096
    prompt_tokens: int | None = None
    timeout: float = 120.0
    attempts: int = 5
    pause: float = 1.0
    concurrency: int = 4
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)
    cassette: Path | None = None
    replay: bool = False


@dataclass(frozen=True)
class Order:
    """One request to be sent. ``key`` names its answer for ever: equal requests of one episode are told
    apart by number. ``prompt_tokens`` is an upper bound; ``left`` is what the answer and attempts that
    are lost on the way may cost together, ``worst`` the most one attempt can cost."""

    request: Mapping[str, Any]
    key: str
    prompt_tokens: int
    worst: Usage
    left: Limits = field(default_factory=Limits)


class Transport(Protocol):
    """What turns an order into an answer. Raises :class:`Unanswered` where there is none."""

    def complete(self, order: Order) -> Answer: ...


def well_formed(text: str) -> str:
    """Text that can be sent and stored: JSON may bring lone surrogates, UTF-8 has none."""
    return text.encode("utf-8", "replace").decode()


def one_word(finish: str) -> str:
    """A server's reason for ending an answer as a word that can be stored and shown; it may send anything."""
    return re.sub(r"\W+", "_", finish, flags=re.ASCII)[:40]


def request_of(
    settings: Settings, messages: Sequence[Message], schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The request as plain data; equal requests have equal hashes."""
    request: dict[str, Any] = {
        # The folder of a file bridge is no property of the request.
        "model": "files" if settings.model.startswith("files:") else settings.model,
        "messages": [{key: well_formed(value) for key, value in message.items()} for message in messages],
        "max_tokens": settings.answer_tokens,
    }
    if settings.temperature is not None:
        request["temperature"] = settings.temperature
    if settings.reasoning_effort is not None:
        request["reasoning_effort"] = settings.reasoning_effort
    if schema is not None:
        request["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)},
        }
    return request


def bytes_of(request: Mapping[str, Any]) -> int:
    """Bytes that a model reads of a request: no tokenizer makes more tokens than that of them."""
    texts = [str(message.get("content", "")) for message in request["messages"]]
    if "response_format" in request:
        texts.append(json.dumps(request["response_format"]))
    return REQUEST_BYTES + sum(MESSAGE_BYTES + len(text.encode()) for text in texts)


def affordable(settings: Settings, prompt: int, left: Limits) -> int:
    """Answer tokens that fit what is left after a prompt of ``prompt`` tokens.

    Raises:
        BudgetSpent: naming the limit that leaves no room for an answer worth its prompt.
    """
    limits, prices = settings.limits, settings.prices
    room: dict[str, float] = {}
    if left.requests is not None and left.requests < 1:
        room[f"{limits.requests} requests"] = 0
    if left.tokens is not None:
        room[f"{limits.tokens} tokens"] = left.tokens - prompt
    if left.money is not None:
        rest = left.money - prompt * prices.prompt / 1e6
        enough = math.inf if rest >= 0 else 0.0
        room[f"{limits.money:g} money"] = rest * 1e6 / prices.answer if prices.answer else enough
    tight, least = min(room.items(), key=lambda item: item[1], default=("", math.inf))
    if least < min(SMALLEST_ANSWER, settings.answer_tokens):
        raise BudgetSpent(f"the budget of {tight} is spent: no room for a prompt of up to {prompt} tokens")
    return int(min(settings.answer_tokens, least))
