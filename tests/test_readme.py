"""The README's example does what a reader expects of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kb_env.types import Status

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_the_python_example_improves_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), names)  # our own text, as a reader would run it
    env = names["env"]
    try:
        (step,) = env.unwrapped.episode.steps  # type: ignore[attr-defined]
        assert step.status is Status.TIMED
        assert step.reward > 0
        assert step.best_speedup > 2
    finally:
        env.close()  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert "BLOCK_X" in shown
    assert str(step.best_speedup) in shown
