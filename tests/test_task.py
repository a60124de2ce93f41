"""Task folders: what loads, and the one clear error for everything that does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kb_env.task import BUILTIN, builtin_names, expected_status, load_task, solutions
from kb_env.types import KbError, Status, Task

TOML = """
title = "Scale"
description = "y = 2 x"
family = "elementwise"
dtype = "float32"
accumulate = "float32"
bytes_moved = "8 * n"
flops = "n"

[[arguments]]
name = "x"
kind = "input"
dtype = "float32"
shape = ["n"]

[[arguments]]
name = "y"
kind = "output"
dtype = "float32"
shape = ["n"]

[[arguments]]
name = "n"
kind = "scalar"
dtype = "int32"

[[check]]
n = 5

[[bench]]
n = 1000
"""

REFERENCE = """
import torch

def inputs(sizes, generator, device):
    return {"x": torch.randn(sizes["n"], generator=generator, device=device)}

def reference(inputs, sizes):
    return {"y": 2 * inputs["x"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "scale"
    path.mkdir()
    (path / "task.toml").write_text(TOML)
    (path / "reference.py").write_text(REFERENCE)
    (path / "kernel.cu").write_text("void launch(const float* x, float* y, int n) {}\n")
    return path


def test_a_users_folder_loads(folder: Path) -> None:
    task = load_task(folder)
    assert (task.name, task.suite, task.entry, task.unit) == ("scale", "user", "launch", "float32")
    assert task.signature == "void launch(const float* x, float* y, int n)"
    assert [case.name for case in task.check + task.bench] == ["check0", "bench0"]
    assert task.initial.text.startswith("void launch")
    assert solutions(task, "right") == {} == solutions(task, "wrong")
    assert load_task(str(folder)) == task


def test_the_key_follows_the_content_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "scale"
    shutil.copytree(folder, moved)
    assert load_task(moved).key == load_task(folder).key
    (moved / "task.toml").write_text(TOML.replace("n = 1000", "n = 1001"))
    assert load_task(moved).key != load_task(folder).key


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('title = "Scale"', 'title = "Scale"\ncolour = "red"', "unknown key 'colour'"),
        ('title = "Scale"\n', "", "'title' is missing"),
        ('title = "Scale"', 'title = ""', "'title' must be a non-empty string"),
        ('dtype = "float32"\naccumulate', 'dtype = "float31"\naccumulate', "dtype 'float31' is not one of"),
        ('accumulate = "float32"', 'accumulate = "exact"', "accumulate 'exact' is not one of"),
        ('flops = "n"', 'flops = "m"', "flops, check0: cannot evaluate 'm'"),
        ('flops = "n"', 'flops = "-n"', "flops is negative"),
        ('flops = "n"', 'flops = "n ** 9999.0"', "flops, check0"),
        ('bytes_moved = "8 * n"', "bytes_moved = 0", "bytes_moved is 0 in check0"),
        ('bytes_moved = "8 * n"', 'bytes_moved = "open(1)"', "cannot evaluate 'open(1)'"),
        ('kind = "input"', 'kind = "in"', "argument 'x': kind 'in' is not one of"),
        ('kind = "input"', 'kind = "output"', "no argument is an input"),
        ('kind = "output"', 'kind = "input"', "no argument is an output"),
        ('name = "y"', 'name = "x"', "appears twice"),
        ('name = "y"', 'name = "y-"', "'y-' is not an identifier"),
        ('shape = ["n"]', 'shape = ["n - 5"]', "a dimension is a positive integer"),
        ('shape = ["n"]', 'shape = ["n / 2"]', "a dimension is a positive integer"),
        ('shape = ["n"]', 'shape = "n"', "shape is a list"),
        ('shape = ["n"]', "", "a scalar has no shape, every other kind has one"),
        ('shape = ["n"]', 'shape = ["n"]\nstride = 1', "unknown key 'stride'"),
        ('kind = "scalar"', 'kind = "scalar"\nvalue = "m"', "cannot evaluate 'm'"),
        ('kind = "scalar"', 'kind = "scalar"\nvalue = "2 ** 31"', "does not fit int32"),
        ('kind = "input"', 'kind = "input"\nvalue = 1', "only a scalar has one"),
        ("[[check]]\nn = 5\n", "", "at least one [[check]] table"),
        ("[[bench]]\nn = 1000\n", "", "at least one [[bench]] table"),
        ("n = 5", "n = 0", "size n must be a positive integer"),
        ("n = 5", "n = 5.5", "size n must be a positive integer"),
        ("n = 5", "n = true", "size n must be a positive integer"),
        ("n = 5", "n = 5\nm = 1", "bench0 gives"),
        ("[[check]]", "[check]", "write 'check' as [[check]] tables"),
        ('title = "Scale"', 'title = "Scale"\nentry = "run it"', "is not a function name"),
        ('title = "Scale"', 'title = "Scale"\nentry = "run"', "defines no function 'run'"),
        ('title = "Scale"', 'title = "Scale"\nlanguage = "opencl"', "language 'opencl' is not one of"),
        ('title = "Scale"', 'title = "Scale"\nworkspace_bytes = -1', "workspace_bytes must be"),
        ('title = "Scale"', 'title = "Scale"\ntags = [1]', "tags must be a list of strings"),
        ('title = "Scale"', "title = ", "is not TOML"),
    ],
)
def test_one_clear_error_for_a_malformed_task(folder: Path, old: str, new: str, named: str) -> None:
    assert old in TOML
    (folder / "task.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(KbError) as caught:
        load_task(folder)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value).split("is not TOML")[0]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("reference.py", None, "reference.py is missing"),
        ("kernel.cu", None, "kernel.cu is missing"),
        ("task.toml", None, "holds no task.toml"),
        ("reference.py", "def inputs(:", "is not Python"),
        ("reference.py", "def inputs(sizes, generator, device): pass", "defines no function 'reference'"),
        ("kernel.cu", b"\xff\xfe", "as UTF-8 text"),
    ],
)
def test_missing_and_broken_files(folder: Path, name: str, text: str | bytes | None, named: str) -> None:
    path = folder / name
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(KbError, match=named):
        load_task(folder)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(KbError, match=r"no task 'softmix'.*softmax"):
        load_task("softmix")


def test_expected_status() -> None:
    assert expected_status("// expect: WRONG\n// why") == (Status.WRONG,)
    assert expected_status("// expect: WRONG|CRASHED") == (Status.WRONG, Status.CRASHED)
    assert expected_status("# expect: TIMED_OUT") == (Status.TIMED_OUT,)
    with pytest.raises(KbError, match="names no status"):
        expected_status("// expect: BROKEN")
    with pytest.raises(KbError, match="starts with"):
        expected_status("#include <cuda_runtime.h>")


def test_solutions_need_a_folder_and_a_verdict(folder: Path) -> None:
    task = load_task(folder)
    with pytest.raises(KbError, match="'right' or 'wrong'"):
        solutions(task, "good")
    loose = Task(**{**vars(task), "folder": None})
    with pytest.raises(KbError, match="was not loaded from a folder"):
        solutions(loose, "right")
    (folder / "right").mkdir()
    (folder / "right" / "fast.cu").write_text("// fast")
    (folder / "right" / "notes.txt").write_text("not a program")
    assert [*solutions(task, "right")] == ["fast"]
    assert solutions(task, "right")["fast"].task == "scale"


@pytest.mark.parametrize("name", builtin_names())
def test_builtin_tasks_are_whole(name: str) -> None:
    task = load_task(name)
    assert task.suite == "kb" and task.folder == str(BUILTIN / name)
    right, wrong = solutions(task, "right"), solutions(task, "wrong")
    assert len(right) >= 2 and len(wrong) >= 3
    for program in wrong.values():
        assert Status.TIMED not in expected_status(program.text)
        assert program.text.split("\n")[1].startswith("// "), "the second line says what is wrong"
    texts = [program.text for program in (*right.values(), *wrong.values(), task.initial)]
    assert len(set(texts)) == len(texts)
    # The launcher's name and the task's description are all a policy is told: both must be there.
    assert all(task.entry in text for text in texts) and len(task.description) > 20
    aligned = [case for case in task.check if all(size % 32 == 0 for size in case.sizes.values())]
    assert len(aligned) < len(task.check), "some check case must be irregular"
