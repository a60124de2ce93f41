"""The code in docs/policies.md and docs/models.md is run, their commands are read by the real parsers."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import tyro
from model_server import Server, answer
from paper import PaperEvaluator

from experiments import cli, run
from experiments.run_folder import RunFolder
from kb_env.types import Status

DOCS = Path(__file__).parent.parent / "docs"
PROGRAM = "Faster.\n```cuda\n// us: {}\nvoid launch();\n```\n"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.mark.parametrize("name", ["DoubleTheBlock", "EveryMove", "FromTheBest"])
def test_the_policies_in_the_docs_run(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = [block for block in blocks("policies.md", "python") if f"class {name}" in block]
    (tmp_path / f"docs_{name.lower()}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(run, "make_evaluator", lambda backend, record=None: PaperEvaluator())
    server.say(answer(PROGRAM.format(500)), answer(PROGRAM.format(800)), answer(PROGRAM.format(250)))
    words = [
        "run",
        "softmax",
        "--policy",
        f"docs_{name.lower()}:{name}",
        "--steps",
        "4",
        "--out",
        str(tmp_path),
    ]
    model = ["--model", "m", "--base-url", server.url] if name == "FromTheBest" else []
    assert cli.main([*words, *model]) == 0
    (episode,) = RunFolder(tmp_path).episodes()
    statuses = [step.status for step in episode.steps]
    if name == "DoubleTheBlock":
        assert episode.ended == "submitted" and statuses == [Status.TIMED] * 2
        assert "BLOCK = 512" in str(episode.steps[0].after)
    elif name == "EveryMove":
        assert statuses == [Status.TIMED] * 4 and len({step.after for step in episode.steps}) == 4
    else:
        assert [step.action[:6] == "revert" for step in episode.steps] == [False, False, True, False]
        assert episode.best_speedup == pytest.approx(4.0) and "parts" in episode.steps[0].notes
    importlib.invalidate_caches()


def test_the_first_policy_has_twenty_lines() -> None:
    code = blocks("policies.md", "python")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20


def commands(page: str) -> list[str]:
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("kb ")]


@pytest.mark.parametrize("command", [c for page in ("policies.md", "models.md") for c in commands(page)])
def test_commands_in_the_docs_are_read(command: str) -> None:
    words = shlex.split(command)[1:]
    name = " ".join(words[:2]) if words[0] == "bench" else words[0]
    module = importlib.import_module(cli.COMMANDS[name][0])
    tyro.cli(module.Args, args=words[len(name.split()) :])


def test_options_in_the_docs_exist() -> None:
    from experiments.model_args import ModelArgs

    known = {f"--{name.replace('_', '-')}" for name in ModelArgs.__dataclass_fields__}
    table = (DOCS / "models.md").read_text().split("## Options")[1].split("##")[0]
    named = set(re.findall(r"`(--[a-z-]+)", table))
    assert named <= known and known - named == {"--model", "--base-url", "--key-file"}
