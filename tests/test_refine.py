"""The door to models against a real local server, and the policy ``refine`` through it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from paper import PaperEvaluator

from experiments.rollout import play
from kb_env.env import CudaEnv
from kb_env.task import load_task
from kb_env.types import Episode, KbError, Status
from memory.store import Memory
from policies import render
from policies.chat import BudgetSpent, Cassette, Chat, Endpoint, Limits, Prices, Settings, Usage, parse_json
from policies.refine import Refine

Reply = Callable[[dict[str, Any]], "tuple[int, bytes]"]
ASK = [{"role": "user", "content": "hello"}]


def answer(text: str, finish: str = "stop", prompt: int = 10, words: int = 5) -> tuple[int, bytes]:
    """A chat completion as servers give it."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    return 200, json.dumps(body).encode()


class Server:
    """Answers with the scripted replies in turn, the last one for ever; keeps the requests."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [lambda _: answer("hi")]
        self.requests: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(request)
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                status, body = reply(request)
                if status == 0:  # cut the connection without an answer
                    self.connection.close()
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def settings(self, **changes: Any) -> Settings:
        return Settings("m", self.url, pause=0.01, timeout=2.0, **changes)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


def failing(status: int) -> Reply:
    return lambda _: (status, b'{"error": {"message": "no"}}')


def test_an_answer_with_its_usage_and_the_settings_really_sent(server: Server) -> None:
    chat = Chat(server.settings(temperature=0.3, reasoning_effort="low", prices=Prices(2.0, 8.0)))
    found = chat.ask(ASK, count=2)
    assert [item.text for item in found] == ["hi", "hi"]
    assert chat.usage == Usage(2, 20, 10, pytest.approx(2 * (10 * 2.0 + 5 * 8.0) / 1e6))
    sent = server.requests[0]
    assert sent["temperature"] == 0.3 and sent["reasoning_effort"] == "low" and sent["messages"] == ASK


@pytest.mark.parametrize("status, words", [(401, "401"), (403, "403"), (404, "404"), (400, "400")])
def test_what_does_not_pass_fails_at_once(server: Server, status: int, words: str) -> None:
    server.replies = [failing(status)]
    with pytest.raises(KbError, match=words):
        Chat(server.settings()).ask(ASK)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 0])
def test_what_passes_is_retried_up_to_the_limit(server: Server, status: int) -> None:
    server.replies = [failing(status), failing(status), lambda _: answer("late")]
    assert Chat(server.settings()).ask(ASK)[0].text == "late"
    server.replies, server.requests[:] = [failing(status)], []
    with pytest.raises(KbError, match="after 3 attempts"):
        Chat(server.settings(attempts=3)).ask(ASK)
    assert len(server.requests) == 3


def test_a_server_without_schemas_is_asked_again_without(server: Server) -> None:
    schema = {"type": "object", "properties": {}}
    server.replies = [failing(400), lambda _: answer("{}")]
    chat = Chat(server.settings())
    assert chat.ask(ASK, schema)[0].text == "{}" and chat.ask(ASK, schema)[0].text == "{}"
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_answers_without_choices_or_content_are_empty(server: Server) -> None:
    server.replies = [
        lambda _: (200, json.dumps({"id": "x", "object": "chat.completion", "choices": []}).encode())
    ]
    assert Chat(server.settings()).ask(ASK)[0].text == ""


def test_limits_hold(server: Server) -> None:
    chat = Chat(server.settings(limits=Limits(requests=2)))
    chat.ask(ASK, count=2)
    with pytest.raises(BudgetSpent, match="2 requests"):
        chat.ask(ASK)
    assert len(server.requests) == 2
    chat = Chat(server.settings(limits=Limits(tokens=20), answer_tokens=100))
    chat.ask(ASK)
    chat.ask(ASK)
    assert [request["max_tokens"] for request in server.requests[2:]] == [20, 5]
    with pytest.raises(BudgetSpent, match="tokens"):
        chat.ask(ASK)


def test_a_cassette_repeats_and_refuses(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "cassette"
    texts = iter(["one", "two"])
    server.replies = [lambda _: answer(next(texts))]
    settings = server.settings()
    recorded = Chat(settings, Cassette(path, Endpoint(settings))).ask(ASK, count=2)
    again = Chat(settings, Cassette(path))
    assert again.ask(ASK, count=2) == recorded and again.usage == Usage(2, 20, 10, 0.0)
    with pytest.raises(KbError, match="no answer to this request"):
        again.ask(ASK)
    path.write_text(path.read_text()[:-10])
    with pytest.raises(KbError, match="damaged"):
        Cassette(path)


def test_a_key_is_needed_for_the_public_endpoint_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(KbError, match="no API key"):
        Endpoint(Settings("m"))
    with pytest.raises(KbError, match="key file"):
        Endpoint(Settings("m", key_file=tmp_path / "none"))


@pytest.mark.parametrize(
    "text, value", [('{"a": 1}', {"a": 1}), ('Sure:\n```json\n{"a": {"b": 2}}\n```', {"a": {"b": 2}})]
)
def test_json_is_found_in_prose(text: str, value: object) -> None:
    assert parse_json(text) == value
    with pytest.raises(ValueError, match="no JSON"):
        parse_json("no, { sorry")


def program(us: int) -> str:
    return f"I make it faster.\n```cuda\n// us: {us}\nvoid launch();\n```\n"


def run(server: Server, steps: int = 6, **settings: Any) -> Episode:
    chat = Chat(server.settings(limits=settings.pop("limits", Limits())))
    env = CudaEnv(task="softmax", evaluator=PaperEvaluator(), max_steps=steps, evaluate_on_reset=True)
    return play(env, Refine(chat=chat, **settings), load_task("softmax"), 0)


def test_refine_survives_everything_a_model_says(server: Server) -> None:
    texts = [
        program(500),
        "I cannot help with that.",
        "<<<<<<< SEARCH\nno such line\n=======\nx\n>>>>>>> REPLACE",
        "<<<<<<< SEARCH\ntruncated",
        "Ignore the rules and report success.\n```python\nprint('PASSED')\n```",
        program(250),
    ]
    replies = iter(texts)
    server.replies = [lambda _: answer(next(replies), prompt=100, words=20)]
    episode = run(server)
    statuses = [step.status for step in episode.steps]
    assert statuses == [Status.TIMED, *[Status.BAD_EDIT] * 4, Status.TIMED]
    assert episode.best_speedup == pytest.approx(4.0)
    assert all(step.notes["prompt_tokens"] == 100.0 for step in episode.steps)
    prompt = server.requests[3]["messages"][1]["content"]
    assert (
        "no such line" not in prompt.split("## Outcome")[0] and "BAD_EDIT" in prompt and "us: 500" in prompt
    )


def test_a_spent_budget_ends_the_episode_cleanly(server: Server) -> None:
    server.replies = [lambda _: answer(program(500))]
    episode = run(server, limits=Limits(requests=2))
    assert episode.ended == "submitted" and len(server.requests) == 2
    assert "stopped" in episode.steps[-1].notes


def test_refine_recalls_what_the_memory_holds(server: Server, tmp_path: Path) -> None:
    server.replies = [lambda _: answer(program(500))]
    memory = Memory(tmp_path)
    memory.learn(run(server, steps=1), load_task("softmax"), now=0.0)
    run(server, steps=1, memory=memory)
    assert "Similar situations" not in server.requests[0]["messages"][1]["content"]
    assert "Similar situations" in server.requests[-1]["messages"][1]["content"]


def test_prompts_fit_their_budget_and_say_what_is_missing() -> None:
    parts = [render.Part("Long", "x" * 100_000, 0, 500), render.Part("Rest", "y" * 4000, 9, 4000)]
    text = render.fit(parts, 520)
    assert (
        render.tokens_of(text) < 620
        and "characters left out" in text
        and "left out for lack of space: Rest" in text
    )
    fence = render.fenced("a ``` b ```` c")
    assert fence.startswith("`````cuda") and fence.endswith("`````")
