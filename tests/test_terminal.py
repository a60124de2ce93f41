"""What a candidate or its compiler wrote reaches a terminal without control characters."""

from __future__ import annotations

import io
import unicodedata

from rich.console import Console

from experiments.check import words
from experiments.run import show_diff
from kb_env.observe import clean

HOSTILE = (
    "error: \x1b[2J\x1b]0;owned\x07 wiped\r+ fake \x9b31m line\nsecond \x7f line \u202eenil\u2069\u200b\ufeff"
)


def controls(text: str) -> set[str]:
    return {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs")}


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


def test_line_ends_and_letters_stay() -> None:
    assert clean("a\r\nb\tc é 漢 \u00a0\n") == "a\nb\tc é 漢 \u00a0\n"
    assert clean("a\rb\x0bc\u202dd") == "a\ufffdb\ufffdc\ufffdd"
