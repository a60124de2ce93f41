"""The door to models against a real local server: faults, limits, structure, cassettes."""

from __future__ import annotations

import dataclasses
import email.utils
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from model_server import ASK, Reply, Server, answer, body, failure

from kb_env.types import KbError
from policies import endpoint
from policies.budget import BudgetSpent, Limits, NoAnswer, Prices, Usage
from policies.cassette import read_answers
from policies.chat import Chat, chat_of, parse_json, transport_of
from policies.endpoint import Endpoint
from policies.maicrl_answers import ask_checked
from policies.request import SMALLEST_ANSWER, Answer, Order, Settings, affordable, bytes_of

SCHEMA = {
    "type": "object",
    "properties": {"gain": {"type": "number", "minimum": 0}},
    "required": ["gain"],
    "additionalProperties": False,
}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def ask(server: Server, **changes: Any) -> Answer:
    return Chat(server.settings(**changes)).ask(ASK)[0]


def gain(chat: Chat) -> tuple[float | None, str]:
    """The gain that a model names, after one repair round at most, and what was wrong."""

    def check(raw: object, strict: bool) -> float:
        if not isinstance(raw, dict) or set(raw) != {"gain"}:
            raise ValueError(f"{sorted(raw)} is not gain alone" if isinstance(raw, dict) else "no object")
        if not isinstance(raw["gain"], (int, float)) or raw["gain"] < 0:
            raise ValueError(f"{raw['gain']!r} is no number from 0 on")
        return raw["gain"]

    return ask_checked(chat, ASK, SCHEMA, check)


def test_an_answer_with_its_usage_and_the_settings_really_sent(server: Server) -> None:
    chat = Chat(
        server.settings(temperature=0.3, reasoning_effort="low", answer_tokens=77, prices=Prices(2.0, 8.0))
    )
    found = chat.ask(ASK, count=2)
    assert [item.text for item in found] == ["hi", "hi"]
    assert chat.usage == Usage(2, 20, 10, pytest.approx(2 * (10 * 2.0 + 5 * 8.0) / 1e6))
    sent = server.requests[0]
    assert sent["temperature"] == 0.3 and sent["reasoning_effort"] == "low" and sent["messages"] == ASK
    assert sent["max_tokens"] == 77 and "stream" not in sent
    ask(server)
    assert "temperature" not in server.requests[-1] and "reasoning_effort" not in server.requests[-1]


@pytest.mark.parametrize(
    "status, words", [(401, "--key-file"), (403, "403"), (404, "--model"), (400, "400"), (422, "422")]
)
def test_what_does_not_pass_fails_at_once_in_one_line(server: Server, status: int, words: str) -> None:
    server.say(failure(status, "no\nsecond line\x1b[31m" + "x" * 1000))
    with pytest.raises(KbError, match=words) as found:
        ask(server)
    assert len(server.requests) == 1
    assert "\n" not in str(found.value) and "\x1b" not in str(found.value) and len(str(found.value)) < 600


def test_a_key_that_a_server_repeats_is_not_shown(server: Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-very-secret\n")
    for reply in (failure(401, "wrong key sk-very-secret!"), Reply(200, b'"Bearer sk-very-secret"', JSON)):
        server.say(reply)
        with pytest.raises(KbError, match=r"\(the key\)") as found:
            ask(server, key_file=tmp_path / "key")
        assert "secret" not in str(found.value)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 0])
def test_what_passes_is_retried_up_to_the_limit(server: Server, status: int) -> None:
    server.say(failure(status), failure(status), answer("late"))
    assert ask(server).text == "late" and len(server.requests) == 3
    server.say(failure(status))
    with pytest.raises(NoAnswer, match="after 3 attempts"):
        ask(server, attempts=3)
    assert len(server.requests) == 3


def test_a_spent_quota_does_not_pass(server: Server) -> None:
    error = json.dumps({"error": {"message": "pay", "code": "insufficient_quota"}}).encode()
    server.say(Reply(429, error, {"Content-Type": "application/json"}))
    with pytest.raises(KbError, match="pay"):
        ask(server)
    assert len(server.requests) == 1


def test_timeouts_and_cut_answers_are_retried_and_charged(server: Server) -> None:
    slow = dataclasses.replace(answer("slow"), seconds=0.6)
    half = dataclasses.replace(answer("x" * 100), half=True)
    server.say(slow, half, failure(0), answer("there"))
    chat = Chat(server.settings(timeout=0.3, answer_tokens=100))
    assert chat.ask(ASK)[0].text == "there"
    lost = bytes_of(server.requests[0])
    assert chat.usage == Usage(4, 3 * lost + 10, 3 * 100 + 5)


def test_a_server_that_is_not_there_is_not_charged() -> None:
    chat = Chat(Settings("m", "http://127.0.0.1:9/v1", attempts=2, pause=0.01))
    with pytest.raises(NoAnswer, match="after 2 attempts"):
        chat.ask(ASK)
    assert chat.usage == Usage()


def test_lost_answers_stop_before_the_limits_are_passed(server: Server) -> None:
    server.say(failure(0))
    size = bytes_of({"messages": ASK})
    chat = Chat(server.settings(answer_tokens=100, limits=Limits(tokens=2 * (size + 100))))
    with pytest.raises(BudgetSpent, match="lost on the way"):
        chat.ask(ASK)
    assert len(server.requests) == 2 and chat.usage.tokens == 2 * (size + 100)


def test_the_pause_a_server_asks_for_is_kept(server: Server) -> None:
    server.say(failure(429, Retry_After="0.7"), answer("hi"))
    ask(server)
    assert server.times[1] - server.times[0] >= 0.7
    server.say(failure(503, Retry_After="100000"))
    with pytest.raises(NoAnswer, match="asks to wait 100000 s"):
        ask(server)
    assert len(server.requests) == 1


def test_a_pause_may_be_a_date_or_nonsense() -> None:
    def pause(value: str) -> float | None:
        import httpx2

        response = httpx2.Response(
            429, headers={"retry-after": value}, request=httpx2.Request("POST", "http://x")
        )
        return endpoint.asked_pause(endpoint.openai.RateLimitError("no", response=response, body=None))

    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert pause(soon) == pytest.approx(30, abs=2) and pause("-5") == 0.0 and pause("soon") is None


@pytest.mark.parametrize(
    "reply, text, finish",
    [
        (body({"choices": []}), "", "empty"),
        (answer(None), "", "stop"),
        (answer(None, refusal="I will not."), "I will not.", "refusal"),
        (answer("x", finish="length"), "x", "length"),
        (answer("", finish="content_filter"), "", "content_filter"),
        (answer("x", finish="\ud800\x1b[31m\n## Task" + "!" * 99), "x", "_31m_Task_"),
    ],
)
def test_strange_completions_are_answers(server: Server, reply: Reply, text: str, finish: str) -> None:
    server.say(reply)
    found = ask(server)
    assert (found.text, found.finish) == (text, finish)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>hello</html>", {"Content-Type": "text/html"}),
        Reply(200, b"{not json", {"Content-Type": "application/json"}),
        Reply(200, b"[" * 100_000, {"Content-Type": "application/json"}),
        Reply(200, b"[]", {"Content-Type": "application/json"}),
        Reply(200, b'"text"', {"Content-Type": "application/json"}),
        Reply(200, b"{}", {"Content-Type": "application/json"}),
        body({"choices": [{"index": 0, "message": "text"}]}),
        Reply(302, b"", {"Location": "/elsewhere"}),
    ],
)
def test_what_is_no_completion_is_an_error_or_empty(server: Server, reply: Reply) -> None:
    server.say(reply)
    try:
        assert ask(server, attempts=1).text == ""
    except KbError as error:
        assert "\n" not in str(error)


def test_an_error_inside_a_completion_is_one(server: Server) -> None:
    server.say(body({"choices": None, "error": {"message": "upstream is down"}}))
    with pytest.raises(KbError, match="upstream is down"):
        ask(server)


def test_text_that_is_no_unicode_is_mended_on_both_ways(server: Server, tmp_path: Path) -> None:
    server.say(answer("bad \ud800 text"))
    chat = recorded(server, tmp_path / "one")
    found = chat.ask([{"role": "user", "content": "half \udfff a character"}])[0]
    assert found.text == "bad ? text" and server.prompt() == "half ? a character"
    again = recorded(server, tmp_path / "one", replay=True)
    assert again.ask([{"role": "user", "content": "half ? a character"}])[0] == found


def test_usage_that_the_server_leaves_out_is_bounded(server: Server) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    server.say(body({"choices": [choice]}))
    chat = Chat(server.settings())
    chat.ask(ASK)
    assert chat.usage == Usage(1, bytes_of(server.requests[0]), 5)


@pytest.mark.parametrize("odd", [10**400, 10**300, -1])
def test_usage_that_is_no_count_is_bounded_like_usage_left_out(server: Server, odd: int) -> None:
    server.say(answer("hello", prompt=odd), answer("hello", words=odd), answer("hello"))
    chat = Chat(server.settings(prices=Prices(1.0, 2.0)))
    for _ in range(3):
        chat.ask(ASK)
    size = bytes_of(server.requests[0])
    assert (chat.usage.requests, chat.usage.answer_tokens) == (3, 15)
    assert 10 < chat.usage.prompt_tokens - 10 <= 2 * size * 1.25 + 1 and chat.prompt_bound(server.requests[0])


def test_a_server_without_schemas_is_asked_again_without(server: Server) -> None:
    server.say(failure(400, "response_format"), answer('{"gain": 1}'))
    chat = Chat(server.settings())
    assert gain(chat) == gain(chat) == (1, "")
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_a_request_that_is_bad_for_another_reason_does_not_lose_the_schema(server: Server) -> None:
    server.say(failure(400, "too long"), failure(400, "too long"), answer('{"gain": 1}'))
    chat = Chat(server.settings())
    with pytest.raises(KbError, match="too long"):
        chat.ask(ASK, SCHEMA)
    chat.ask(ASK, SCHEMA)
    assert ["response_format" in request for request in server.requests] == [True, False, True]


def test_models_that_call_the_limit_otherwise_are_asked_so(server: Server) -> None:
    server.say(failure(400, "unsupported 'max_tokens': use 'max_completion_tokens'"), answer("hi"))
    chat = Chat(server.settings(answer_tokens=50))
    chat.ask(ASK)
    chat.ask(ASK)
    assert [request.get("max_completion_tokens") for request in server.requests] == [None, 50, 50]
    assert "max_tokens" not in server.requests[-1]


@pytest.mark.parametrize(
    "bad, why",
    [
        ("I cannot help.", "no JSON object"),
        ('{"gain": "much"}', "'much' is no number from 0 on"),
        ('{"gain": -1}', "-1 is no number from 0 on"),
        ("{}", "[] is not gain alone"),
        ('{"gain": 1, "more": 2}', "['gain', 'more'] is not gain alone"),
        ('{"gain": 1', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_answer_is_sent_back_once_with_the_reason(server: Server, bad: str, why: str) -> None:
    server.say(answer(bad), answer('Sure:\n```json\n{"gain": 2}\n```'))
    assert gain(Chat(server.settings())) == (2, "")
    assert why in server.prompt() and len(server.requests) == 2
    server.say(answer(bad, finish="length"))
    found, fault = gain(Chat(server.settings()))
    assert found is None and why in fault and "cut off" in fault
    assert len(server.requests) == 2


def test_json_is_found_in_prose() -> None:
    assert parse_json('{"a": 1}') == {"a": 1}
    assert parse_json('Sure, {x}:\n```json\n{"a": {"b": 2}}\n``` {"c": 3}') == {"a": {"b": 2}}
    with pytest.raises(ValueError, match="no JSON"):
        parse_json("no, { sorry")
    started = time.perf_counter()
    with pytest.raises(ValueError, match="no JSON"):
        parse_json("{" * 1_000_000)
    assert time.perf_counter() - started < 10


# -- limits --------------------------------------------------------------------------------------


def test_requests_and_what_was_bought_before_the_limit(server: Server) -> None:
    chat = Chat(server.settings(limits=Limits(requests=3)))
    assert len(chat.ask(ASK, count=5)) == 3 and "3 requests is spent" in chat.shortfall
    with pytest.raises(BudgetSpent, match="3 requests"):
        chat.ask(ASK)
    assert len(server.requests) == 3


def honest(request: dict[str, Any], words: int = 10**9) -> Reply:
    """A server that counts a token a byte and fills what it is allowed."""
    count = min(words, int(request["max_tokens"]))
    return answer("x", prompt=bytes_of(request), words=count)


@pytest.mark.parametrize("limit", [200, 1000, 1234, 5000])
def test_tokens_hold_against_the_greediest_server(server: Server, limit: int) -> None:
    server.say(honest)
    chat = Chat(server.settings(answer_tokens=300, limits=Limits(tokens=limit)))
    with pytest.raises(BudgetSpent, match=f"{limit} tokens"):
        for _ in range(100):
            chat.ask(ASK)
    assert 0 < chat.usage.tokens <= limit
    assert limit - chat.usage.tokens < 85 * 1.25 + SMALLEST_ANSWER + 1  # another would not have fitted


def test_money_holds_against_the_greediest_server(server: Server) -> None:
    server.say(honest)
    chat = Chat(server.settings(answer_tokens=300, prices=Prices(3.0, 15.0), limits=Limits(money=0.02)))
    with pytest.raises(BudgetSpent, match=r"0\.02 money"):
        for _ in range(100):
            chat.ask(ASK)
    assert 0.0 < chat.usage.money <= 0.02


def test_side_by_side_samples_share_what_is_left(server: Server) -> None:
    server.say(honest)
    chat = Chat(server.settings(answer_tokens=300, limits=Limits(tokens=1500)))
    found = chat.ask(ASK, count=10)
    assert len(found) == 4 and chat.usage.tokens <= 1500
    assert sorted(request["max_tokens"] for request in server.requests) == [
        1500 - 3 * 385 - 85,
        300,
        300,
        300,
    ]


def test_side_by_side_samples_do_not_pay_for_lost_answers_twice(server: Server) -> None:
    server.say(failure(0))
    chat = Chat(server.settings(limits=Limits(requests=3)))
    with pytest.raises(BudgetSpent, match="lost on the way"):
        chat.ask(ASK, count=2)
    assert len(server.requests) <= 3 and chat.usage.requests <= 3


def test_a_prompt_that_cannot_be_paid_is_not_sent(server: Server) -> None:
    chat = Chat(server.settings(limits=Limits(tokens=100)))
    with pytest.raises(BudgetSpent, match="no room"):
        chat.ask([{"role": "user", "content": "x" * 200}])
    assert server.requests == [] and chat.usage == Usage()


def test_the_bound_on_prompts_follows_what_the_model_counts(server: Server) -> None:
    server.say(lambda request: answer("hi", prompt=bytes_of(request) // 4))
    chat = Chat(server.settings())
    request = {"messages": [{"role": "user", "content": "x" * 920}]}
    assert chat.prompt_bound(request) == 1000
    chat.ask(request["messages"])
    assert chat.prompt_bound(request) == pytest.approx(250 * 1.25, abs=1)


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(0, 5000),
    st.integers(0, 20_000),
    st.floats(0, 1),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_what_is_affordable_fits(
    most: int, prompt: int, tokens: int, money: float, price: float, words: float
) -> None:
    limits = Limits(tokens=tokens, money=money)
    settings = Settings("m", answer_tokens=most, limits=limits, prices=Prices(price, words))
    try:
        count = affordable(settings, prompt, limits)
    except BudgetSpent:
        return
    used = settings.prices.usage(prompt, count)
    assert 1 <= count <= most and used.tokens <= tokens and used.money <= money + 1e-12


def test_no_more_requests_at_once_than_allowed(server: Server) -> None:
    server.say(dataclasses.replace(answer("hi"), seconds=0.1))
    assert len(Chat(server.settings(concurrency=2)).ask(ASK, count=6)) == 6
    assert server.busiest == 2


def test_a_failed_sample_does_not_lose_the_others(server: Server) -> None:
    # The failure comes late: one that comes before the other requests are sent rightly stops them.
    server.say(dataclasses.replace(failure(400, "bad luck"), seconds=1.5), answer("hi"))
    chat = Chat(server.settings())
    assert [item.text for item in chat.ask(ASK, count=3)] == ["hi", "hi"] and "bad luck" in chat.shortfall
    assert chat.ask(ASK, count=3) and chat.shortfall == ""
    server.say(failure(400))
    with pytest.raises(KbError, match="400"):
        Chat(server.settings(concurrency=2)).ask(ASK, count=20)
    assert len(server.requests) <= 2


def test_an_interrupt_is_not_held_up_by_threads_that_wait(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, threading; from pathlib import Path; from policies.chat import Chat, Settings\n"
        "def stop():\n"
        "    while len(list(Path(sys.argv[1]).glob('requests/*.md'))) < 2: pass\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Thread(target=stop).start()\n"
        "Chat(Settings('files:' + sys.argv[1])).ask([{'role': 'user', 'content': 'x'}], count=2)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode != 0 and "KeyboardInterrupt" in found.stderr


# -- cassettes -----------------------------------------------------------------------------------


def recorded(server: Server, path: Path, **changes: Any) -> Chat:
    return Chat(server.settings(cassette=path, **changes))


def test_a_cassette_repeats_to_the_bit_and_refuses_the_rest(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "cassettes" / "one"
    texts = iter(["one", "two", "three"])
    server.say(lambda _: answer(next(texts)))
    chat = recorded(server, path, concurrency=1)
    found = chat.ask(ASK, count=2) + chat.ask(ASK)
    again = recorded(server, path, replay=True)
    assert again.ask(ASK) + again.ask(ASK, count=2) == found and again.usage == chat.usage
    assert len(server.requests) == 3
    with pytest.raises(KbError, match="without --replay"):
        again.ask(ASK)


def test_a_full_cassette_needs_no_key_and_no_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    recorded(server, tmp_path / "one").ask(ASK)
    server.close()
    assert Chat(Settings("m", cassette=tmp_path / "one")).ask(ASK)[0].text == "hi"


def test_episodes_that_ask_the_same_have_answers_of_their_own(server: Server, tmp_path: Path) -> None:
    texts = iter(["first", "second"])
    server.say(lambda _: answer(next(texts)))

    def episode(seed: int, **changes: Any) -> str:
        chat = recorded(server, tmp_path / "one", **changes)
        rng = np.random.default_rng(seed)
        chat.begin(rng)
        assert rng.random() == np.random.default_rng(seed).random()
        return chat.ask(ASK)[0].text

    assert [episode(0), episode(1)] == ["first", "second"]
    assert [episode(1, replay=True), episode(0, replay=True)] == ["second", "first"]


def test_a_torn_last_line_is_mended_and_costs_one_answer(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "one"
    texts = iter(["one", "two", "again", "three"])
    server.say(lambda _: answer(next(texts)))
    recorded(server, path, concurrency=1).ask(ASK, count=2)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first + 1, len(whole) - 20, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert [item.text for item in read_answers(path).values()] == ["one"]
    assert [item.text for item in recorded(server, path).ask(ASK, count=2)] == ["one", "again"]
    recorded(server, path).ask([{"role": "user", "content": "other"}])
    assert [item.text for item in read_answers(path).values()] == ["one", "again", "three"]
    assert path.read_bytes().startswith(whole[:first]) and path.read_bytes().endswith(b"\n")


def test_a_damaged_line_in_the_middle_is_named(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "one"
    recorded(server, path).ask(ASK, count=2)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0][:-5], *lines[1:]]))
    with pytest.raises(KbError, match=":1 is damaged"):
        recorded(server, path)


def test_two_processes_record_into_one_cassette(tmp_path: Path) -> None:
    path = tmp_path / "one"
    code = (
        "import sys; from pathlib import Path; from policies.cassette import append\n"
        "for i in range(50): append(Path(sys.argv[1]), (sys.argv[2] * 5000 + str(i)).encode())"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path), word]) for word in "ab"]
    assert [child.wait() for child in children] == [0, 0]
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 101 and lines.pop() == b""
    assert sorted({line[:5000] for line in lines}) == [b"a" * 5000, b"b" * 5000]


# -- settings ------------------------------------------------------------------------------------


def test_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(KbError, match="no API key"):
        Endpoint(Settings("m"))
    with pytest.raises(KbError, match="key file"):
        Endpoint(Settings("m", key_file=tmp_path / "none"))
    key = tmp_path / "key"
    for text, words in (("", "is empty"), ("two words", "one word"), ("schlüssel", "one word")):
        key.write_text(text)
        with pytest.raises(KbError, match=words):
            Endpoint(Settings("m", key_file=key))
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    key.write_text("from-the-file\n")
    ask(server)
    ask(server, key_file=key)
    assert [headers["authorization"] for headers in server.headers] == [
        "Bearer from-the-environment",
        "Bearer from-the-file",
    ]


def test_a_model_must_be_named_and_replay_needs_a_cassette() -> None:
    with pytest.raises(KbError, match="--model"):
        chat_of(None)
    with pytest.raises(KbError, match="--cassette"):
        transport_of(Settings("m", replay=True))
    chat = chat_of(Settings("m", "http://127.0.0.1:9/v1"))
    assert chat_of(chat) is chat


def test_importing_the_policies_imports_no_client() -> None:
    code = "import sys, policies.refine; print('openai' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_a_transport_of_another_kind_is_charged_alike() -> None:
    class Echo:
        def complete(self, order: Order) -> Answer:
            return Answer(str(order.request["messages"][0]["content"]), "stop", order.worst)

    chat = Chat(Settings("m", answer_tokens=100), Echo())
    assert chat.ask(ASK)[0].text == "hello" and chat.usage.requests == 1
