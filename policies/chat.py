"""The only door to language models: chat completions of any OpenAI-compatible endpoint.

One request is a list of messages and an optional JSON schema; the answer is text with its usage.
Failures are typed: a wrong key fails at once, a busy or broken server is retried with growing
pauses up to a limit, a spent budget raises :class:`BudgetSpent` so that the episode ends cleanly.
Cassettes keep every answer by the hash of its request: a paid run can be repeated for nothing.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import openai
import tenacity

from kb_env.types import KbError, digest

Message = Mapping[str, str]


class BudgetSpent(KbError):
    """A hard limit on requests, tokens or money is reached; what was bought so far is kept."""


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

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True)
class Limits:
    """Hard limits over the life of a :class:`Chat`; None is no limit."""

    requests: int | None = None
    tokens: int | None = None
    money: float | None = None


@dataclass(frozen=True)
class Prices:
    """Money per million tokens, given by the user."""

    prompt: float = 0.0
    answer: float = 0.0


@dataclass(frozen=True)
class Answer:
    """One completion. ``finish`` is the server's reason (``stop``, ``length``, ``content_filter``, ...)."""

    text: str
    finish: str
    usage: Usage


@dataclass(frozen=True)
class Settings:
    """How to reach a model and how to sample. ``key_file`` wins over the environment's OPENAI_API_KEY."""

    model: str
    base_url: str | None = None
    key_file: Path | None = None
    temperature: float | None = 0.7
    reasoning_effort: str | None = None
    answer_tokens: int = 4096
    timeout: float = 120.0
    attempts: int = 5
    pause: float = 1.0
    concurrency: int = 4
    prices: Prices = field(default_factory=Prices)
    limits: Limits = field(default_factory=Limits)


class Transport(Protocol):
    """What turns a request into answers: an endpoint, a cassette, or a folder of files."""

    def complete(self, request: Mapping[str, Any], count: int) -> list[Answer]: ...


def request_of(
    settings: Settings, messages: Sequence[Message], schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The request as plain data; equal requests have equal hashes."""
    request: dict[str, Any] = {
        "model": settings.model,
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


def read_key(settings: Settings) -> str:
    """The API key; a local server needs none.

    Raises:
        KbError: if the file cannot be read, or the public endpoint is asked for without a key.
    """
    if settings.key_file is not None:
        try:
            return settings.key_file.read_text().strip()
        except OSError as error:
            raise KbError(f"cannot read the key file {settings.key_file}: {error.strerror}") from error
    key = os.environ.get("OPENAI_API_KEY", "")
    if not key and settings.base_url is None:
        raise KbError("no API key: set OPENAI_API_KEY, give a key file, or --base-url of a local server")
    return key or "none"


_PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)


class Endpoint:
    """A server, by the openai client. Retries what passes, names the remedy for what does not."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client = openai.OpenAI(
            api_key=read_key(settings), base_url=settings.base_url, timeout=settings.timeout, max_retries=0
        )
        self._slots = threading.Semaphore(settings.concurrency)
        self._schemas = True

    def complete(self, request: Mapping[str, Any], count: int) -> list[Answer]:
        if not self._schemas:
            request = {key: value for key, value in request.items() if key != "response_format"}
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_PASSING),
            stop=tenacity.stop_after_attempt(self.settings.attempts),
            wait=tenacity.wait_random_exponential(multiplier=self.settings.pause, max=60.0),
            reraise=True,
        )
        try:
            with self._slots:
                return [answer for _ in range(count) for answer in retrying(self._once, request)]
        except openai.AuthenticationError as error:
            raise KbError(
                f"the endpoint refused the key (401): check OPENAI_API_KEY or the key file; {error}"
            ) from error
        except openai.PermissionDeniedError as error:
            raise KbError(f"the key may not use {request['model']!r} (403): {error}") from error
        except openai.NotFoundError as error:
            raise KbError(
                f"no model {request['model']!r} or no such path at the endpoint (404): {error}"
            ) from error
        except openai.BadRequestError as error:
            if "response_format" in request:  # a server without structured output: ask again without
                self._schemas = False
                return self.complete(request, count)
            raise KbError(f"the endpoint rejected the request (400): {error}") from error
        except _PASSING as error:
            tries = self.settings.attempts
            raise KbError(
                f"no answer from the model after {tries} attempts: {type(error).__name__}: {error}"
            ) from error
        except openai.OpenAIError as error:
            raise KbError(f"the endpoint answered what the client cannot read: {error}") from error

    def _once(self, request: Mapping[str, Any]) -> list[Answer]:
        response = self._client.chat.completions.create(**request)
        spent = response.usage
        prompt = spent.prompt_tokens if spent is not None else 0
        answer = spent.completion_tokens if spent is not None else 0
        prices = self.settings.prices
        usage = Usage(1, prompt, answer, (prompt * prices.prompt + answer * prices.answer) / 1e6)
        if not response.choices:
            return [Answer("", "empty", usage)]
        choice = response.choices[0]
        return [Answer(choice.message.content or "", choice.finish_reason or "", usage)]


class Cassette:
    """Answers by the hash of their request and its repetition. Records what it does not know, or refuses."""

    def __init__(self, path: Path, source: Transport | None = None) -> None:
        self.path = path
        self.source = source
        self._uses: dict[str, int] = {}
        self._known: dict[str, Answer] = {}
        if path.exists():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                self._read(line, number, last=False)

    def _read(self, line: str, number: int, last: bool) -> None:
        try:
            item = json.loads(line)
            usage = Usage(**item["usage"])
            self._known[item["key"]] = Answer(item["text"], item["finish"], usage)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(self.path.read_text().splitlines()) and self.source is not None:
                return  # a write that was cut off: that answer is asked for again
            raise KbError(f"{self.path}:{number} is damaged ({error}): delete that line") from error

    def complete(self, request: Mapping[str, Any], count: int) -> list[Answer]:
        return [self._one(request) for _ in range(count)]

    def _one(self, request: Mapping[str, Any]) -> Answer:
        base = digest(json.dumps(request, sort_keys=True))
        use = self._uses.get(base, 0)
        self._uses[base] = use + 1
        key = f"{base}-{use}"
        if key not in self._known:
            if self.source is None:
                raise KbError(
                    f"{self.path} holds no answer to this request ({key}): record it with a model first"
                )
            answer = self.source.complete(request, 1)[0]
            self._known[key] = answer
            facts = {"key": key, "text": answer.text, "finish": answer.finish, "usage": vars(answer.usage)}
            with self.path.open("a") as file:
                file.write(json.dumps(facts) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return self._known[key]


class Chat:
    """Requests within limits. ``usage`` is everything spent so far, replayed answers included."""

    def __init__(self, settings: Settings, transport: Transport | None = None) -> None:
        self.settings = settings
        self.transport = transport if transport is not None else Endpoint(settings)
        self.usage = Usage()

    def ask(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None, count: int = 1
    ) -> list[Answer]:
        """``count`` answers to the messages.

        Raises:
            BudgetSpent: if a limit would be, or was, passed.
            KbError: if the endpoint cannot be used.
        """
        answers = []
        for _ in range(count):
            self._check()
            found = self.transport.complete(request_of(self._affordable(), messages, schema), 1)
            for answer in found:
                self.usage += answer.usage
            answers += found
        return answers

    def _affordable(self) -> Settings:
        """Settings whose answer cannot pass the token limit by itself."""
        limit = self.settings.limits.tokens
        if limit is None:
            return self.settings
        return replace(
            self.settings, answer_tokens=max(1, min(self.settings.answer_tokens, limit - self.usage.tokens))
        )

    def _check(self) -> None:
        limits, used = self.settings.limits, self.usage
        for name, limit, spent in (
            ("requests", limits.requests, used.requests),
            ("tokens", limits.tokens, used.tokens),
            ("money", limits.money, used.money),
        ):
            if limit is not None and spent >= limit:
                raise BudgetSpent(f"the budget of {limit:g} {name} is spent ({spent:g} used)")


def parse_json(text: str) -> Any:
    """The JSON object in a model's answer, fenced or surrounded by prose; ValueError if there is none."""
    start = text.find("{")
    while start >= 0:
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            start = text.find("{", start + 1)
    raise ValueError("the answer holds no JSON object")
