"""The file bridge: readable requests, whole answers only, many at once, and runs that go on."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper import PaperEvaluator

from experiments.rollout import play
from kb_env.env import CudaEnv
from kb_env.files import write_atomic
from kb_env.task import load_task
from kb_env.types import Episode, KbError
from policies.budget import Limits, NoAnswer, Prices, Usage
from policies.chat import Chat, Settings
from policies.files import FileBridge
from policies.refine import Refine
from policies.request import Answer

ASK = [{"role": "system", "content": "You are."}, {"role": "user", "content": "hello\n# heading"}]
PROGRAM = "Faster.\n```cuda\n// us: 500\nvoid launch();\n```\n"
SCHEMA = {"type": "object", "properties": {"gain": {"type": "number"}}, "required": ["gain"]}


def chat(folder: Path, settled: float = 0.05, wait: float | None = 120, **changes: Any) -> Chat:
    settings = Settings(f"files:{folder}", answer_tokens=200, **changes)
    bridge = FileBridge(folder, settings, wait=wait, poll=0.01)
    bridge.settled = settled
    return Chat(settings, bridge)


def pending(folder: Path) -> list[Path]:
    return sorted((folder / "requests").glob("*.md"))


def answer_path(request: Path) -> Path:
    """Where a request's own text says that the answer goes."""
    found = re.search(r"^    (\S+)$", request.read_text(), re.MULTILINE)
    assert found is not None
    return Path(found[1])


@contextmanager
def answering(folder: Path, write: Callable[[Path, str], None]) -> Iterator[None]:
    """Somebody who answers each pending request once, until the block ends."""
    stop, seen = threading.Event(), set()

    def loop() -> None:
        while not stop.is_set():
            for request in pending(folder):
                try:
                    text, place = request.read_text(), answer_path(request)
                except FileNotFoundError:
                    continue
                if request not in seen:
                    seen.add(request)
                    write(place, text)
            time.sleep(0.005)

    thread = threading.Thread(target=loop)
    thread.start()
    yield
    stop.set()
    thread.join()


def renamed(place: Path, text: str) -> None:
    write_atomic(place, PROGRAM.encode())


def test_a_request_is_readable_whole_and_goes_away_when_answered(tmp_path: Path) -> None:
    found = chat(tmp_path)
    seen = []

    def write(place: Path, text: str) -> None:
        seen.append((place, text))
        place.write_text("my answer")

    with answering(tmp_path, write):
        answer = found.ask(ASK, SCHEMA)[0]
    ((place, text),) = seen
    assert answer.text == "my answer" and pending(tmp_path) == [] and place.exists()
    assert place.parent == tmp_path / "answers" and str(place) in text and "200 tokens" in text
    for piece in (
        "= system =",
        "You are.",
        "= user =",
        "hello\n# heading",
        '"gain"',
        "= end of the request =",
    ):
        assert piece in text
    assert answer.usage.answer_tokens == len("my answer") and answer.usage.prompt_tokens > len("hello")


def test_half_written_answers_are_never_taken(tmp_path: Path) -> None:
    def slowly(place: Path, text: str) -> None:
        with place.open("w") as file:
            for word in ("one ", "two ", "three"):
                file.write(word)
                file.flush()
                time.sleep(0.1)

    with answering(tmp_path, slowly):
        assert chat(tmp_path, settled=0.4).ask(ASK)[0].text == "one two three"


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["gone", "emptied"])
def test_an_answer_that_changes_while_it_is_read_is_waited_for(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    class Saved(FileBridge):
        """An editor saves the file anew right after it was looked at, once."""

        saved = False

        def _state(self, path: Path) -> tuple[int, int] | None:
            found = super()._state(path)
            if found is not None and not self.saved:
                change(path)
                self.saved = True
            return found

    settings = Settings(f"files:{tmp_path}", answer_tokens=200)
    bridge = Saved(tmp_path, settings, wait=120, poll=0.01)
    bridge.settled = 0.0
    done: list[Answer] = []
    thread = threading.Thread(target=lambda: done.extend(Chat(settings, bridge).ask(ASK)), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not pending(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.005)
    (request,) = pending(tmp_path)
    place = answer_path(request)
    write_atomic(place, b"first")
    while not bridge.saved and time.monotonic() < deadline:
        time.sleep(0.005)
    write_atomic(place, b"second")
    thread.join(60)
    assert bridge.saved and [item.text for item in done] == ["second"]


def test_json_answers_count_once_they_are_complete(tmp_path: Path) -> None:
    whole = json.dumps({"text": "hi", "finish": "length", "prompt_tokens": 7, "answer_tokens": 3})
    problems = []

    def slowly(place: Path, text: str) -> None:
        target = place.with_suffix(".json")
        endless, many = (f'{{"text": "x", "prompt_tokens": {number}}}' for number in ("1e999", "1e300"))
        for part in (
            "", "[1]", '{"text": 1}', '{"text": "x", "prompt_tokens": -1}', whole[:20], endless, many,
            "[" * 100_000,
        ):  # fmt: skip
            target.write_text(part)
            time.sleep(0.05)
            problem = target.with_suffix(".problem")
            problems.append(problem.read_text() if problem.exists() else "")
        write_atomic(target, whole.encode())

    found = chat(tmp_path, prices=Prices(1.0, 2.0))
    with answering(tmp_path, slowly):
        answer = found.ask(ASK)[0]
    assert (answer.text, answer.finish) == ("hi", "length") and found.usage == Usage(1, 7, 3, 13e-6)
    assert all("is no answer (yet)" in text for text in problems) and "negative" in problems[3]
    assert not list((tmp_path / "answers").glob("*.problem"))


def episode(found: Chat, seed: int = 0) -> Episode:
    task = load_task("softmax")
    env = CudaEnv(task=task, evaluator=PaperEvaluator(), max_steps=2, evaluate_on_reset=True)
    return play(env, Refine(chat=found), task, seed)


def test_many_rollouts_wait_at_once_each_for_answers_of_its_own(tmp_path: Path) -> None:
    results: list[Episode] = []
    threads = [
        threading.Thread(target=lambda seed=seed: results.append(episode(chat(tmp_path), seed)))
        for seed in range(5)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 100
    while len(pending(tmp_path)) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pending(tmp_path)) == 5
    with answering(tmp_path, renamed):
        for thread in threads:
            thread.join()
    assert [item.best_speedup for item in results] == [pytest.approx(2.0)] * 5
    assert len(list((tmp_path / "answers").glob("*.md"))) == 10


def test_a_run_that_is_started_again_finds_its_answers(tmp_path: Path) -> None:
    with answering(tmp_path, renamed):
        first = episode(chat(tmp_path))
    again = episode(chat(tmp_path, wait=0.5))
    assert [step.action for step in again.steps] == [step.action for step in first.steps]
    moved = tmp_path.with_name("moved")
    os.rename(tmp_path, moved)
    assert episode(chat(moved, wait=0.5)).best_speedup == first.best_speedup


def test_waiting_may_have_an_end_and_requests_stay(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="answer the files in"):
        chat(tmp_path, wait=0.05).ask(ASK)
    (request,) = pending(tmp_path)
    request.unlink()  # somebody tidied up: it is asked again
    with pytest.raises(NoAnswer):
        chat(tmp_path, wait=0.05).ask(ASK)
    assert pending(tmp_path) == [request]


def test_limits_hold_for_people_too(tmp_path: Path) -> None:
    with answering(tmp_path, renamed):
        found = episode(chat(tmp_path, limits=Limits(requests=1)))
    assert found.ended == "submitted" and "stopped" in found.steps[-1].notes


def test_odd_answers(tmp_path: Path) -> None:
    with answering(tmp_path, lambda place, _: place.write_bytes(b"\xff\xfe broken")):
        assert "broken" in chat(tmp_path).ask(ASK)[0].text
    big = [{"role": "user", "content": "big"}]
    with (
        answering(tmp_path, lambda place, _: place.write_bytes(b"x" * 4_000_001)),
        pytest.raises(KbError, match="shorten it"),
    ):
        chat(tmp_path).ask(big)


def test_the_settings_lead_here(tmp_path: Path) -> None:
    found = Chat(Settings(f"files:{tmp_path}"))
    assert isinstance(found.transport, FileBridge) and (tmp_path / "requests").is_dir()
    found.begin(np.random.default_rng(0))
    (tmp_path / "file").write_text("")
    with pytest.raises(KbError, match="choose another folder"):
        Chat(Settings(f"files:{tmp_path / 'file'}"))
