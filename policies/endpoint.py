"""OpenAI-compatible endpoints, and the only file that imports the openai client.

What passes by itself (a busy or broken server, a cut connection, a timeout) is tried again with
growing pauses, or after the pause that the server names; what does not (a wrong key, no such model)
fails at once with the remedy. An attempt whose answer was lost on the way may have been paid for: it
is charged at the most it can have cost, so that limits hold.
"""

from __future__ import annotations

import email.utils
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import openai
import tenacity
from openai.types.chat import ChatCompletion

from kb_env.types import KbError
from policies.budget import BudgetSpent, NoAnswer, Usage
from policies.request import MOST_TOKENS, Answer, Order, Settings

#: Longest pause between attempts, and longest pause that a server may ask for (seconds).
LONGEST_PAUSE, LONGEST_WAIT = 60.0, 600.0
#: What is sent where there is no key.
NO_KEY = "none"
#: HTTP statuses that pass by themselves, besides 5xx.
PASSING = (408, 409, 425, 429)


def read_key(settings: Settings) -> str:
    """The API key; a local server needs none.

    Raises:
        KbError: if the file cannot be read, holds no key, or the public endpoint is asked for without one.
    """
    place = "OPENAI_API_KEY"
    if settings.key_file is not None:
        place = f"the key file {settings.key_file}"
        try:
            key = settings.key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KbError(f"cannot read {place}: {error}") from error
        if not key:
            raise KbError(f"{place} is empty: put the key into it")
    else:
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key and settings.base_url is None:
            raise KbError("no API key: set OPENAI_API_KEY, give --key-file, or --base-url of a local server")
    if not key.isascii() or len(key.split()) > 1:
        raise KbError(f"{place} holds more than a key: one word of ASCII is expected")
    return key or NO_KEY


def one_line(error: object) -> str:
    """A server's words on one line, printable and short."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return flat if len(flat) <= 300 else f"{flat[:300]} ..."


def passes(error: BaseException) -> bool:
    """Whether the failure may pass by itself."""
    if isinstance(error, openai.APIStatusError):
        if error.code == "insufficient_quota" or (asked_pause(error) or 0.0) > LONGEST_WAIT:
            return False
        return error.status_code in PASSING or error.status_code >= 500
    return isinstance(error, openai.APIConnectionError)


def lost(error: BaseException) -> bool:
    """Whether the server may have answered, and charged, though no answer arrived."""
    if isinstance(error, openai.APITimeoutError):
        return True
    refused = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")
    return isinstance(error, openai.APIConnectionError) and not refused


def asked_pause(error: BaseException) -> float | None:
    """Seconds that the server asks to wait (Retry-After, in seconds or as a date), if it does."""
    if not isinstance(error, openai.APIStatusError):
        return None
    value = error.response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def word(thing: object, name: str) -> str:
    value = getattr(thing, name, None)
    return value if isinstance(value, str) else ""


def count(thing: object, name: str) -> int | None:
    value = getattr(thing, name, None)
    return value if isinstance(value, int) and 0 <= value <= MOST_TOKENS else None


class Waiting(tenacity.wait.wait_base):
    """Growing random pauses, never shorter than what the server asks for."""

    def __init__(self, pause: float) -> None:
        self._own = tenacity.wait_random_exponential(multiplier=pause, max=LONGEST_PAUSE)

    def __call__(self, state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome is not None else None
        asked = asked_pause(failure) if failure is not None else None
        return max(self._own(state), asked or 0.0)


class Endpoint:
    """A server by its base URL. At most ``settings.concurrency`` requests are under way at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client = openai.OpenAI(
            api_key=read_key(settings), base_url=settings.base_url, timeout=settings.timeout, max_retries=0
        )
        self._slots = threading.Semaphore(settings.concurrency)
        # What this server was found to want otherwise: no schemas, another name for the answer's limit.
        self._schemas = True
        self._limit_name = "max_tokens"

    def complete(self, order: Order) -> Answer:
        charged: list[Usage] = []

        def charge(state: tenacity.RetryCallState) -> None:
            failure = state.outcome.exception() if state.outcome is not None else None
            if failure is None or not lost(failure):
                return
            charged.append(order.worst)
            total = sum(charged, Usage())
            if not order.left.hold(total + order.worst):
                raise BudgetSpent(
                    f"{total.requests} answers were lost on the way ({self._said(failure)}), and another "
                    "attempt could pass the limits",
                    total,
                ) from failure

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(passes),
            stop=tenacity.stop_after_attempt(self.settings.attempts),
            wait=Waiting(self.settings.pause),
            before_sleep=charge,
            reraise=True,
        )
        try:
            with self._slots:
                answer = retrying(self._once, order)
        except openai.OpenAIError as error:
            if lost(error):
                charged.append(order.worst)
            raise NoAnswer(self._remedy(error, order.request), sum(charged, Usage())) from error
        return Answer(answer.text, answer.finish, sum(charged, answer.usage))

    def _once(self, order: Order) -> Answer:
        """One attempt; a server that does not know an option is asked again without it."""
        known = self._schemas
        while True:
            sent = self._sent(order.request)
            try:
                return self._answer(self._client.chat.completions.create(**sent), order)
            except (ValueError, RecursionError) as error:
                raise openai.OpenAIError(f"this is not JSON: {error}") from error
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if "max_completion_tokens" in str(error) and "max_tokens" in sent:
                    self._limit_name = "max_completion_tokens"
                elif "response_format" in sent:
                    self._schemas = False
                else:
                    self._schemas = known  # it was not for the schema
                    raise

    def _sent(self, request: Mapping[str, Any]) -> dict[str, Any]:
        sent = {key: value for key, value in request.items() if key != "response_format" or self._schemas}
        sent[self._limit_name] = sent.pop("max_tokens")
        return sent

    def _answer(self, response: object, order: Order) -> Answer:
        """What came back as an answer; usage that the server leaves out is bounded."""
        if not isinstance(response, ChatCompletion):
            raise openai.OpenAIError(f"this is no chat completion: {self._said(response)}")
        # The client does not check types: nothing that a server sends is taken for granted.
        choice = response.choices[0] if response.choices else None
        failure = getattr(response, "error", None)
        if choice is None and failure:  # some routers answer 200 all the same
            raise openai.OpenAIError(self._said(failure))
        message = getattr(choice, "message", None)
        said, refused = word(message, "content"), word(message, "refusal")
        finish = "refusal" if refused else word(choice, "finish_reason")
        text = said or refused
        prompt, words = count(response.usage, "prompt_tokens"), count(response.usage, "completion_tokens")
        if prompt is None or words is None:
            prompt = order.prompt_tokens
            words = min(len(text.encode("utf-8", "replace")), int(order.request["max_tokens"]))
        usage = self.settings.prices.usage(prompt, words)
        return Answer(text, finish if choice is not None else "empty", usage)

    def _said(self, error: object) -> str:
        """A server's words for people; one that repeats the key is not quoted with it."""
        key = self._client.api_key
        return one_line(str(error).replace(key, "(the key)") if key != NO_KEY else error)

    def _remedy(self, error: openai.OpenAIError, request: Mapping[str, Any]) -> str:
        """One line on what went wrong and what to do about it."""
        model, said = request["model"], self._said(error)
        if isinstance(error, openai.AuthenticationError):
            return f"the endpoint refused the key (401): check OPENAI_API_KEY or --key-file; {said}"
        if isinstance(error, openai.PermissionDeniedError):
            return f"the key may not use {model!r} (403): {said}"
        if isinstance(error, openai.NotFoundError):
            return f"no model {model!r} or no such path at the endpoint (404): check --model and --base-url; {said}"
        if isinstance(error, (openai.BadRequestError, openai.UnprocessableEntityError)):
            return f"the endpoint rejected the request ({error.status_code}): {said}"
        wait = asked_pause(error) or 0.0
        if wait > LONGEST_WAIT:
            return f"the endpoint asks to wait {wait:.0f} s: try again later; {said}"
        if passes(error):
            tries = self.settings.attempts
            return f"no answer from the model after {tries} attempts: {type(error).__name__}: {said}"
        return f"the endpoint cannot be used: {type(error).__name__}: {said}"
