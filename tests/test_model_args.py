"""The model's options on the command line: what they come to, and that ``kb run`` really uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_server import Server, answer, failure
from paper import PaperEvaluator

from experiments import cli, run
from experiments.model_args import ModelArgs, chat_settings, deciding
from experiments.run_folder import RunFolder
from kb_env.types import KbError
from policies.budget import Limits, Prices

PROGRAM = "Faster.\n```cuda\n// us: 500\nvoid launch();\n```\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(run, "make_evaluator", lambda backend, record=None: PaperEvaluator())
    found = Server()
    yield found
    found.close()


def test_options_become_settings() -> None:
    assert chat_settings(ModelArgs()) == {}
    args = ModelArgs(
        "m", "http://x/v1", temperature=0.5, max_tokens=100, max_money=2.0, prices="1.5,6", cassette=Path("c")
    )
    found = chat_settings(args)["chat"]
    assert (found.model, found.temperature, found.prices) == ("m", 0.5, Prices(1.5, 6.0))
    assert found.limits == Limits(None, 100, 2.0) and found.cassette == Path("c")
    assert "base_url" not in deciding(args) and deciding(args)["temperature"] == 0.5


@pytest.mark.parametrize(
    "args, words",
    [
        (ModelArgs(temperature=1.0), "--temperature needs a model"),
        (ModelArgs("m", max_money=1.0), "--prices"),
        (ModelArgs("m", prices="1"), "IN,OUT"),
        (ModelArgs("m", prices="1,x"), "IN,OUT"),
        (ModelArgs("m", prices="-1,2"), "from 0 on"),
        (ModelArgs("m", max_tokens=-1), "negative"),
        (ModelArgs("m", answer_tokens=0), "positive"),
        (ModelArgs("m", timeout=0.0), "positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(args: ModelArgs, words: str) -> None:
    with pytest.raises(KbError, match=words):
        chat_settings(args)


def kb(server: Server, out: Path, *more: str) -> int:
    words = ["run", "softmax", "--policy", "refine", "--model", "m", "--base-url", server.url]
    return cli.main([*words, "--out", str(out), *more])


def test_kb_run_sends_what_was_asked_for_keeps_answers_and_stops_at_limits(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say(answer(PROGRAM, prompt=1000, words=100))
    (tmp_path / "key").write_text("secret-key\n")
    options = [
        *("--key-file", str(tmp_path / "key"), "--temperature", "0.25", "--reasoning-effort", "low"),
        *("--max-requests", "2", "--max-money", "1", "--prices", "2,10", "--cassette", str(tmp_path / "c")),
    ]
    assert kb(server, tmp_path / "one", "--steps", "5", "--json", *options) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["best_speedup"], facts["steps"], facts["ended"]) == (pytest.approx(2.0), 3, "submitted")
    sent = server.requests[0]
    assert (sent["temperature"], sent["reasoning_effort"]) == (0.25, "low")
    assert server.headers[0]["authorization"] == "Bearer secret-key"
    (episode,) = RunFolder(tmp_path / "one").episodes()
    assert "2 requests" in str(episode.steps[-1].notes["stopped"])
    assert episode.steps[0].notes["money"] == pytest.approx((1000 * 2 + 100 * 10) / 1e6)
    assert "secret-key" not in (tmp_path / "one" / "run.json").read_text()

    server.say(failure(500))
    assert kb(server, tmp_path / "two", "--steps", "5", "--replay", *options) == 0 and not server.requests
    (again,) = RunFolder(tmp_path / "two").episodes()
    assert [(step.action, step.notes) for step in again.steps] == [
        (step.action, step.notes) for step in episode.steps
    ]


@pytest.mark.parametrize("secret", ["pass", "p%40ss", 'p"a\\s/s@?#'])
def test_a_password_inside_a_url_is_not_written_down(tmp_path: Path, secret: str) -> None:
    hidden = f"http://me:{secret}@host:1/v1"
    facts = {"llm": {"base_url": hidden}, "soft_judge": f"m@{hidden}", "other": ["a@b", "http://host/v1"]}
    RunFolder(tmp_path).begin({"args": facts})
    plain = "http://host:1/v1"
    expected = {"llm": {"base_url": plain}, "soft_judge": f"m@{plain}", "other": facts["other"]}
    assert RunFolder(tmp_path).facts() == {"args": expected}


def test_kb_run_reaches_a_server_by_a_password_that_it_does_not_write_down(
    server: Server, tmp_path: Path
) -> None:
    server.say(answer(PROGRAM))
    url = server.url
    server.url = url.replace("://", "://me:hush@")
    assert kb(server, tmp_path / "one", "--steps", "1", "--soft-judge", f"m@{server.url}") == 0
    assert server.requests and url in (tmp_path / "one" / "run.json").read_text()
    for path in (tmp_path / "one").rglob("*"):
        assert path.is_dir() or b"hush" not in path.read_bytes(), path


def test_a_refused_key_ends_the_command_with_one_line(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say(failure(401, "bad key"))
    assert kb(server, tmp_path / "one") == 2
    said = capsys.readouterr().err.strip()
    assert len(server.requests) == 1 and said.startswith("kb: the endpoint refused the key (401)")
    assert "\n" not in said
