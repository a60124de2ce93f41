"""What a candidate or its compiler wrote reaches a terminal without control characters."""

from __future__ import annotations

import io

from rich.console import Console

from experiments.check import words
from experiments.run import show_diff

HOSTILE = "error: \x1b[2J\x1b]0;owned\x07 wiped\r+ fake \x9b31m line\nsecond \x7f line"


def controls(text: str) -> set[str]:
    return {char for char in text if (ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160}


def test_check_prints_no_control_characters() -> None:
    facts = {
        "status": "BUILD_FAILED",
        "trust": "sealed",
        "source": "modelled",
        "device": "H200",
        "speedup": None,
        "limiter": None,
        "message": HOSTILE,
        "findings": [{"text": HOSTILE}],
        "phases": {"build": 1.0},
    }
    shown = words(facts)
    assert controls(shown) == set()
    assert "second" in shown and "wiped" in shown


def test_a_diff_prints_no_control_characters() -> None:
    out = io.StringIO()
    show_diff(Console(file=out, soft_wrap=True, force_terminal=False), f"--- a\n+++ b\n+{HOSTILE}\n")
    assert controls(out.getvalue()) == set()
    assert "second" in out.getvalue()
