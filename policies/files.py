"""The file bridge, ``--model files:DIR``: requests as files for models or people reached by other ways.

Each request is one Markdown file that holds all a model would be sent; its answer is one file of the
same name in ``answers/``, either text (``NAME.md``) or JSON (``NAME.json``: ``text`` and, if known,
``finish``, ``prompt_tokens``, ``answer_tokens``). Many rollouts may wait at once, for as long as it takes;
a run that is started again finds the answers that are there.

Half-written answers are never taken: a program writes elsewhere and renames; text that a person saves
counts once it has not changed for a while, JSON once it is complete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb_env.file_queue import FileQueue
from kb_env.files import write_atomic
from kb_env.types import KbError
from policies.budget import NoAnswer
from policies.request import MOST_TOKENS, Answer, Order, Settings

#: Seconds that a text file has to rest before it counts as written.
SETTLED = 2.0
#: Largest answer file that is read, in bytes.
LARGEST = 4_000_000

HEADER = """# Request {name}

You are asked to answer as the language model would. Read what stands between the lines below and save your
whole answer, and nothing else, as

    {answer}

Write it with an editor (it counts once it has not changed for {settled:g} seconds), or under another name and
rename it. At most about {limit} tokens. This file goes away when the answer was taken.
"""


class Questions(FileQueue):
    """Requests and answers as text. Answers are model text, which is trusted nowhere."""

    suffix = "md"
    answers = "answers"
    trusted = False


def request_text(name: str, request: Mapping[str, Any], answer: Path, settled: float) -> str:
    """A request as a page that a person can read and a model can be given whole."""
    head = HEADER.format(name=name, answer=answer, limit=request["max_tokens"], settled=settled)
    pieces = [head]
    for message in request["messages"]:
        pieces.append(f"{rule(str(message['role']))}\n\n{message['content']}\n")
    if "response_format" in request:
        schema = json.dumps(request["response_format"]["json_schema"]["schema"], indent=1)
        pieces.append(f"{rule('the answer is one JSON object of this schema')}\n\n{schema}\n")
    return "\n".join([*pieces, rule("end of the request") + "\n"])


def rule(title: str) -> str:
    return f"{'=' * 20} {title} {'=' * 20}"


class FileBridge:
    """Waits for answer files. ``wait`` bounds the wait for one in seconds; None waits for ever."""

    def __init__(self, path: Path, settings: Settings, wait: float | None = None, poll: float = 0.5) -> None:
        self.queue = Questions(path)
        self.settings = settings
        self.wait, self.poll = wait, poll
        self.settled = SETTLED

    def complete(self, order: Order) -> Answer:
        text_file = self.queue.result_file(order.key)
        json_file = text_file.with_suffix(".json")
        started = time.monotonic()
        seen: tuple[tuple[int, int] | None, float] = (None, started)
        while True:
            answer = self._from_json(json_file, order)
            state = self._state(text_file)
            if state != seen[0]:
                seen = (state, time.monotonic())
            rested = state is not None and time.monotonic() - seen[1] >= self.settled
            text = read_text(text_file) if answer is None and rested else None
            if text is not None and self._state(text_file) == state:  # not saved anew meanwhile
                answer = self._answer({"text": text}, order)
            if answer is not None:
                self.queue.done(order.key)
                return answer
            if not self.queue.request_file(order.key).exists() and state is None:
                page = request_text(order.key, order.request, text_file.absolute(), self.settled)
                write_atomic(self.queue.request_file(order.key), page.encode("utf-8", "replace"))
            self._pause(started)

    def _state(self, path: Path) -> tuple[int, int] | None:
        """Size and time of change of a file that holds something."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return (found.st_size, found.st_mtime_ns) if found.st_size else None

    def _from_json(self, path: Path, order: Order) -> Answer | None:
        """The answer in a complete JSON file; what is wrong with another is said in a file beside it."""
        text = read_text(path)
        if text is None:
            return None
        problem = path.with_suffix(".problem")
        try:
            answer = self._answer(json.loads(text), order)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            words = f"{path.name} is no answer (yet): {type(error).__name__}: {error}\n"
            write_atomic(problem, words.encode("utf-8", "replace"))
            return None
        problem.unlink(missing_ok=True)
        return answer

    def _answer(self, found: Mapping[str, Any], order: Order) -> Answer:
        text = found["text"]
        if not isinstance(text, str):
            raise TypeError("text must be a string")
        words = min(len(text.encode("utf-8", "replace")), int(order.request["max_tokens"]))
        tokens = [
            int(found.get(name, bound))
            for name, bound in (("prompt_tokens", order.prompt_tokens), ("answer_tokens", words))
        ]
        if min(tokens) < 0:
            raise ValueError("tokens cannot be negative")
        if max(tokens) > MOST_TOKENS:
            raise ValueError(f"more than {MOST_TOKENS} tokens")
        return Answer(text, str(found.get("finish", "stop")), self.settings.prices.usage(*tokens))

    def _pause(self, started: float) -> None:
        waited = time.monotonic() - started
        if self.wait is not None and waited > self.wait:
            raise NoAnswer(f"no answer in {self.wait:g} s: answer the files in {self.queue.path}/requests")
        time.sleep(min(self.poll, 0.01 + waited / 10))


def read_text(path: Path) -> str | None:
    """An answer file's text, None if there is none; what is not UTF-8 in it is replaced."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KbError(f"cannot read the answer {path}: {error.strerror}") from error
    if len(data) > LARGEST:
        raise KbError(f"the answer {path} has more than {LARGEST} bytes: shorten it")
    return data.decode("utf-8", "replace")
