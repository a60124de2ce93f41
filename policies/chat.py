"""The only door to language models: chat completions within hard limits.

One request is a list of messages and an optional JSON schema; the answer is text with its usage. What
carries a request is a :class:`Transport`: an OpenAI-compatible endpoint (policies/endpoint.py), a model
served on this machine (policies/local.py), a folder that a person or another program answers from
(policies/files.py), each with or without a cassette that keeps every answer (policies/cassette.py).

Limits hold before money is spent: the prompt's tokens are bounded from above, the answer's are capped
to what is left, and a request that does not fit is not sent but raises :class:`BudgetSpent`, so that
the episode ends cleanly.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jsonschema
import numpy as np

from kb_env.types import KbError, digest
from policies.budget import BudgetSpent, Limits, Prices, Unanswered, Usage

Message = Mapping[str, str]

#: Bytes a request and each of its messages may have on top of their text: roles, templates.
REQUEST_BYTES, MESSAGE_BYTES = 64, 16
#: Planned tokens of a prompt (see policies/render.py), and of one for a local model's small context.
PROMPT_TOKENS, LOCAL_PROMPT_TOKENS = 16_000, 3_000
#: No request is sent for an answer of fewer tokens than this (or than the settings ask for).
SMALLEST_ANSWER = 64
#: Prompt tokens are bounded by the largest ratio to bytes seen so far, times this.
MARGIN = 1.25

REPAIR = "That answer cannot be used: {}. Answer again with exactly one JSON object of the form asked for."


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


def transport_of(settings: Settings) -> Transport:
    """The transport that the settings name; each is imported only when it is asked for.

    Raises:
        KbError: if no model is named or the transport cannot be used.
    """
    if not settings.model:
        raise KbError("name a model: --model NAME of an endpoint, --model local, or --model files:DIR")
    if settings.cassette is not None:
        from policies.cassette import Cassette

        source = None if settings.replay else (lambda: transport_of(replace(settings, cassette=None)))
        return Cassette(settings.cassette, source)
    if settings.replay:
        raise KbError("--replay needs the cassette to answer from: --cassette FILE")
    kind, colon, rest = settings.model.partition(":")
    if kind == "files" and colon and settings.base_url is None:
        from policies.files import FileBridge

        return FileBridge(Path(rest), settings)
    if kind == "local" and settings.base_url is None:
        from policies.local import serve

        settings = replace(settings, base_url=serve(Path(rest) if rest else None))
    from policies.endpoint import Endpoint

    return Endpoint(settings)


def request_of(
    settings: Settings, messages: Sequence[Message], schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The request as plain data; equal requests have equal hashes."""
    request: dict[str, Any] = {
        # The folder of a file bridge is no property of the request.
        "model": "files" if settings.model.startswith("files:") else settings.model,
        "messages": [dict(message) for message in messages],
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
    return REQUEST_BYTES + sum(MESSAGE_BYTES + len(text.encode("utf-8", "replace")) for text in texts)


class Chat:
    """Requests within limits. ``usage`` is everything spent so far, replayed answers included.

    A chat lives as long as an episode; :meth:`begin` tells episodes apart, so that two of them that
    ask the same get answers of their own from one cassette.
    """

    def __init__(self, settings: Settings, transport: Transport | None = None) -> None:
        self.settings = settings
        self.transport = transport if transport is not None else transport_of(settings)
        self.usage = Usage()
        self._episode = ""
        self._asked: dict[str, int] = {}
        self._ratio: float | None = None
        self._lock = threading.Lock()

    @property
    def prompt_tokens(self) -> int:
        """Tokens that policies plan a prompt for."""
        if self.settings.prompt_tokens is not None:
            return self.settings.prompt_tokens
        local = self.settings.base_url is None and self.settings.model.partition(":")[0] == "local"
        return LOCAL_PROMPT_TOKENS if local else PROMPT_TOKENS

    def begin(self, rng: np.random.Generator) -> None:
        """Open an episode. Draws nothing from ``rng``: a child of it names the episode."""
        self._episode = f"{int(rng.spawn(1)[0].integers(2**62)):x}"
        self._asked = {}

    def ask(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None, count: int = 1
    ) -> list[Answer]:
        """Up to ``count`` answers to the messages, asked for side by side; fewer where the limits allow
        no more or some of the requests failed.

        Raises:
            BudgetSpent: if not even one fits what is left of the limits.
            KbError: if there is no answer at all.
        """
        orders = self._orders(messages, schema, count)
        if len(orders) == 1:
            return [self._send(orders[0])]
        found, failures = [], []
        with ThreadPoolExecutor(min(len(orders), self.settings.concurrency)) as pool:
            for future in [pool.submit(self._send, order) for order in orders]:
                try:
                    found.append(future.result())
                except KbError as error:
                    failures.append(error)
        if not found:
            raise failures[0]
        return found

    def ask_json(self, messages: Sequence[Message], schema: Mapping[str, Any]) -> Any:
        """An answer's JSON object, checked against ``schema`` whether or not the server knows schemas.

        One that fails the check is sent back once with the reason.

        Raises:
            ValueError: if the second answer fails too; the message says why.
            KbError: as :meth:`ask`.
        """
        asked, fault = list(messages), ""
        for _ in range(2):
            answer = self.ask(asked, schema)[0]
            try:
                return checked(answer, schema)
            except ValueError as error:
                fault = str(error)
            asked = [
                *messages,
                {"role": "assistant", "content": answer.text[:2000] or "(empty)"},
                {"role": "user", "content": REPAIR.format(fault)},
            ]
        raise ValueError(fault)

    def prompt_bound(self, request: Mapping[str, Any]) -> int:
        """Tokens the prompt has at most: one a byte until this chat's model has shown its ratio."""
        return math.ceil(bytes_of(request) * (1.0 if self._ratio is None else self._ratio * MARGIN))

    def _orders(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None, count: int
    ) -> list[Order]:
        """Orders that fit the limits together, the answers of all of them being as long as allowed."""
        orders: list[Order] = []
        reserved = self.usage
        for _ in range(max(count, 1)):
            try:
                order = self._order(messages, schema, self.settings.limits.less(reserved))
            except BudgetSpent:
                if not orders:
                    raise
                break
            orders.append(order)
            reserved += order.worst
        left = self.settings.limits.less(reserved)
        return [replace(order, left=left.more(order.worst)) for order in orders]

    def _order(self, messages: Sequence[Message], schema: Mapping[str, Any] | None, left: Limits) -> Order:
        settings = self.settings
        prompt = self.prompt_bound(request_of(settings, messages, schema))
        words = affordable(settings, prompt, left)
        request = request_of(replace(settings, answer_tokens=words), messages, schema)
        base = digest(json.dumps([self._episode, request], sort_keys=True))
        number = self._asked.get(base, 0)
        self._asked[base] = number + 1
        return Order(request, f"{base}-{number}", prompt, settings.prices.usage(prompt, words))

    def _send(self, order: Order) -> Answer:
        try:
            answer = self.transport.complete(order)
        except Unanswered as failure:
            with self._lock:
                self.usage += failure.usage
            raise
        with self._lock:
            self.usage += answer.usage
            ratio = answer.usage.prompt_tokens / bytes_of(order.request) / max(answer.usage.requests, 1)
            self._ratio = max(self._ratio or 0.0, ratio)
        return answer


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


def parse_json(text: str) -> Any:
    """The JSON object in a model's answer, fenced or surrounded by prose; ValueError if there is none."""
    start = text.find("{")
    while start >= 0:
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            start = text.find("{", start + 1)
    raise ValueError("the answer holds no JSON object")


def checked(answer: Answer, schema: Mapping[str, Any]) -> Any:
    """The answer's JSON object if it satisfies the schema; ValueError with the reason if not."""
    more = " (it was cut off: keep it short)" if answer.finish == "length" else ""
    try:
        value = parse_json(answer.text)
        jsonschema.Draft202012Validator(dict(schema)).validate(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except jsonschema.ValidationError as error:
        raise ValueError(f"at {error.json_path}: {error.message[:300]}{more}") from error
    except ValueError as error:
        raise ValueError(f"{error}{more}") from error
    return value


def chat_of(chat: Chat | Settings | None, model: str = "", base_url: str | None = None) -> Chat:
    """The chat a policy was given, or one made from settings, or from a model's name."""
    if isinstance(chat, Chat):
        return chat
    return Chat(chat if chat is not None else Settings(model, base_url))
