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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kb_env.types import KbError, digest
from policies.budget import BudgetSpent, Limits, Unanswered, Usage
from policies.request import (
    Answer,
    Message,
    Order,
    Settings,
    Transport,
    affordable,
    bytes_of,
    one_word,
    request_of,
    well_formed,
)

#: Planned tokens of a prompt (see policies/render.py), and of one for a local model's small context.
PROMPT_TOKENS, LOCAL_PROMPT_TOKENS = 16_000, 3_000
#: Prompt tokens are bounded by the largest ratio to bytes seen so far, times this.
MARGIN = 1.25

#: Opening braces of an answer at which its JSON object may begin.
MOST_BRACES = 1000


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


class Chat:
    """Requests within limits. ``usage`` is everything spent so far, replayed answers included.

    A chat lives as long as an episode; :meth:`begin` tells episodes apart, so that two of them that
    ask the same get answers of their own from one cassette.
    """

    def __init__(self, settings: Settings, transport: Transport | None = None) -> None:
        self.settings = settings
        self.transport = transport if transport is not None else transport_of(settings)
        self.usage = Usage()
        self.shortfall = ""
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
        """Up to ``count`` answers to the messages, asked for side by side; fewer, for the reason in
        ``shortfall``, where the limits allow no more or a request failed.

        Raises:
            BudgetSpent: if not even one fits what is left of the limits.
            KbError: if there is no answer at all.
        """
        self.shortfall = ""
        orders = self._orders(messages, schema, count)
        if len(orders) == 1:
            return [self._send(orders[0])]
        outcomes = self._side_by_side(orders)
        failures = [item for item in outcomes if isinstance(item, KbError)]
        found = [item for item in outcomes if isinstance(item, Answer)]
        if not found:
            raise failures[0]
        self.shortfall = self.shortfall or " ".join(map(str, failures[:1]))
        return found

    def _side_by_side(self, orders: Sequence[Order]) -> list[Answer | KbError | None]:
        """What became of each order; after a failure no more are begun. Threads that wait for an answer do
        not keep the process from ending."""
        outcomes: list[Answer | KbError | None] = [None] * len(orders)
        waiting = iter(range(len(orders)))
        failed = threading.Event()

        def work() -> None:
            while not failed.is_set():
                with self._lock:
                    place = next(waiting, None)
                if place is None:
                    return
                try:
                    outcomes[place] = self._send(orders[place])
                except KbError as error:
                    outcomes[place] = error
                    failed.set()

        count = min(len(orders), self.settings.concurrency)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

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
            except BudgetSpent as spent:
                if not orders:
                    raise
                self.shortfall = str(spent)
                break
            orders.append(order)
            reserved += order.worst
        # Attempts that are lost on the way are paid from what is left over, which orders must not spend twice.
        left = self.settings.limits.less(reserved).shared(len(orders))
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
            answer = replace(answer, text=well_formed(answer.text), finish=one_word(answer.finish))
        except Unanswered as failure:
            with self._lock:
                self.usage += failure.usage
            raise
        with self._lock:
            self.usage += answer.usage
            ratio = answer.usage.prompt_tokens / bytes_of(order.request) / max(answer.usage.requests, 1)
            self._ratio = max(self._ratio or 0.0, ratio)
        return answer


def parse_json(text: str) -> Any:
    """The JSON object in a model's answer, fenced or surrounded by prose; ValueError if there is none."""
    start = text.find("{")
    for _ in range(
        MOST_BRACES
    ):  # each try may read all that follows: an answer of braces would take for ever
        if start < 0:
            break
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            start = text.find("{", start + 1)
    raise ValueError("the answer holds no JSON object")


def chat_of(chat: Chat | Settings | None, model: str = "", base_url: str | None = None) -> Chat:
    """The chat a policy was given, or one made from settings, or from a model's name."""
    if isinstance(chat, Chat):
        return chat
    return Chat(chat if chat is not None else Settings(model, base_url))
