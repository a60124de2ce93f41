"""Tasks on disk: one folder with task.toml, reference.py, the initial program, right/ and wrong/.

Built-in tasks live in kb_env/tasks/; a user's folder of the same form works the same way. The
format is described in docs/tasks.md. Everything malformed raises a KbError that names file, key
and remedy, so that a task either loads whole or not at all.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kb_env.types import DTYPE_BYTES, Argument, Case, KbError, Program, Status, Task, arithmetic

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the same parser under its older name
    import tomli as tomllib

BUILTIN = Path(__file__).parent / "tasks"

KINDS = ("input", "output", "inout", "scalar")

#: Types the tolerance may derive from: what sums and products are carried in.
ACCUMULATES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "int64", "int32")

#: The file that holds the initial program, by language.
SOURCES = {"cuda": "kernel.cu", "torch": "kernel.py"}

_TEXT_KEYS = {
    "title": None,
    "description": None,
    "family": None,
    "entry": "launch",
    "dtype": None,
    "accumulate": None,
    "bytes_moved": None,
    "flops": None,
    "unit": "float32",
    "suite": "",
    "language": "cuda",
}
_OTHER_KEYS = ("workspace_bytes", "tags", "arguments", "check", "bench", "check_small")
_ARGUMENT_KEYS = ("name", "kind", "dtype", "shape", "value")
_INTEGER_RANGE = {"int64": 63, "int32": 31, "int16": 15, "int8": 7, "uint8": 8, "bool": 1}


def builtin_names() -> list[str]:
    """Names of the tasks that come with the package, sorted."""
    return sorted(path.parent.name for path in BUILTIN.glob("*/task.toml"))


def load_task(name_or_folder: str | Path) -> Task:
    """Load a built-in task by name, or any task by its folder.

    Raises:
        KbError: naming what is missing or malformed and where.
    """
    folder = _folder(name_or_folder)
    where = str(folder / "task.toml")
    facts = _parse(folder / "task.toml")
    text = _text_facts(facts, where)
    arguments = tuple(_argument(item, where) for item in _tables(facts, "arguments", where))
    _check_arguments(arguments, where)
    source, reference = _sources(folder, text["language"], text["entry"])
    suite = text.pop("suite") or ("kb" if folder.parent == BUILTIN else "user")
    task = Task(
        name=folder.name,
        suite=suite,
        source=source,
        reference=reference,
        arguments=arguments,
        workspace_bytes=_workspace(facts, where),
        tags=_tags(facts, where),
        folder=str(folder),
        check=_cases(facts, "check", where),
        bench=_cases(facts, "bench", where),
        check_small=_cases(facts, "check_small", where),
        **text,
    )
    _check_cases(task, where)
    return task


def solutions(task: Task, verdict: str) -> dict[str, Program]:
    """The programs in the task's ``right`` or ``wrong`` folder by file name, in sorted order.

    Raises:
        KbError: if ``verdict`` is neither, or the task came from no folder.
    """
    if verdict not in ("right", "wrong"):
        raise KbError(f"solutions are 'right' or 'wrong', not {verdict!r}")
    if task.folder is None:
        raise KbError(f"task {task.name} was not loaded from a folder: it has no {verdict}/ programs")
    suffix = Path(SOURCES[task.language]).suffix
    files = sorted(Path(task.folder, verdict).glob(f"*{suffix}"))
    return {path.stem: Program(task.name, _read(path), task.language) for path in files}


def expected_status(text: str) -> tuple[Status, ...]:
    """Statuses the first line of a wrong/ program allows, such as ``// expect: WRONG|CRASHED``.

    Raises:
        KbError: if the first line is not of that form or names no Status.
    """
    first = text.split("\n", 1)[0].strip()
    for mark in ("// expect:", "# expect:"):
        if first.startswith(mark):
            names = [name.strip() for name in first[len(mark) :].split("|")]
            unknown = [name for name in names if name not in Status.__members__]
            if unknown:
                raise KbError(f"{first!r} names no status {unknown}: use {sorted(Status.__members__)}")
            return tuple(Status(name) for name in names)
    raise KbError(f"a wrong/ program starts with '// expect: STATUS', this one with {first!r}")


def _folder(name_or_folder: str | Path) -> Path:
    name = str(name_or_folder)
    if name in builtin_names():
        return BUILTIN / name
    folder = Path(name).expanduser().resolve()
    if (folder / "task.toml").is_file():
        return folder
    if folder.is_dir():
        raise KbError(f"{folder} holds no task.toml: see docs/tasks.md for the form of a task folder")
    raise KbError(f"no task {name!r}: give a folder or one of {', '.join(builtin_names())}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KbError(f"{path} is missing: a task folder holds it (docs/tasks.md)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KbError(f"cannot read {path} as UTF-8 text: {error}") from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        facts = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise KbError(f"{path} is not TOML: {error}") from error
    known = (*_TEXT_KEYS, *_OTHER_KEYS)
    _no_unknown(facts, known, str(path))
    return facts


def _no_unknown(facts: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(facts) - set(known))
    if unknown:
        raise KbError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(known)}")


def _text_facts(facts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of task.toml whose values are single strings, each checked."""
    text: dict[str, Any] = {}
    for key, default in _TEXT_KEYS.items():
        if key not in facts and default is None:
            raise KbError(f"{where}: {key!r} is missing")
        value = facts.get(key, default)
        if key in ("bytes_moved", "flops") and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or (not value and key != "suite"):
            raise KbError(f"{where}: {key!r} must be a non-empty string, not {value!r}")
        text[key] = value
    _one_of(text["dtype"], tuple(DTYPE_BYTES), "dtype", where)
    _one_of(text["accumulate"], ACCUMULATES, "accumulate", where)
    _one_of(text["language"], tuple(SOURCES), "language", where)
    if not text["entry"].isidentifier():
        raise KbError(f"{where}: entry {text['entry']!r} is not a function name")
    return text


def _one_of(value: object, allowed: tuple[str, ...], key: str, where: str) -> None:
    if value not in allowed:
        raise KbError(f"{where}: {key} {value!r} is not one of {', '.join(allowed)}")


def _tables(facts: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    tables = facts.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(item, dict) for item in tables):
        raise KbError(f"{where}: write {key!r} as [[{key}]] tables")
    return tables


def _argument(item: Mapping[str, Any], where: str) -> Argument:
    _no_unknown(item, _ARGUMENT_KEYS, f"{where} [[arguments]]")
    name = item.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise KbError(f"{where}: argument name {name!r} is not an identifier")
    here = f"{where} argument {name!r}"
    _one_of(item.get("kind"), KINDS, "kind", here)
    _one_of(item.get("dtype"), tuple(DTYPE_BYTES), "dtype", here)
    shape = item.get("shape", [])
    if not isinstance(shape, list) or any(type(dim) not in (int, str) for dim in shape):
        raise KbError(f"{here}: shape is a list of sizes and expressions, not {shape!r}")
    scalar = item["kind"] == "scalar"
    if scalar == bool(shape):
        raise KbError(f"{here}: a scalar has no shape, every other kind has one")
    value = item.get("value")
    if value is not None and (not scalar or type(value) not in (int, float, str)):
        raise KbError(f"{here}: value is a number or an expression, and only a scalar has one")
    return Argument(name, item["kind"], item["dtype"], tuple(shape), value)


def _check_arguments(arguments: tuple[Argument, ...], where: str) -> None:
    names = [argument.name for argument in arguments]
    if len(set(names)) != len(names):
        raise KbError(f"{where}: an argument name appears twice in {names}")
    kinds = {argument.kind for argument in arguments}
    if not kinds & {"output", "inout"}:
        raise KbError(f"{where}: no argument is an output, so nothing could be checked")
    if not kinds & {"input", "inout"}:
        raise KbError(f"{where}: no argument is an input, so the result would be a constant")


def _cases(facts: Mapping[str, Any], kind: str, where: str) -> tuple[Case, ...]:
    tables = _tables(facts, kind, where)
    if not tables and kind != "check_small":
        raise KbError(f"{where}: at least one [[{kind}]] table of sizes is needed")
    for table in tables:
        for name, size in table.items():
            if type(size) is not int or size < 1:
                raise KbError(f"{where} [[{kind}]]: size {name} must be a positive integer, not {size!r}")
    prefix = "small" if kind == "check_small" else kind
    return tuple(Case(f"{prefix}{index}", table) for index, table in enumerate(tables))


def _check_cases(task: Task, where: str) -> None:
    """Every case gives the same sizes, and every expression has a usable value in every case."""
    cases = task.check + task.bench + task.check_small
    names = set(cases[0].sizes)
    for case in cases:
        if set(case.sizes) != names:
            raise KbError(f"{where}: {case.name} gives {sorted(case.sizes)}, {cases[0].name} {sorted(names)}")
        for argument in task.arguments:
            _check_value(argument, case, where)
        for key in ("bytes_moved", "flops"):
            if _value(getattr(task, key), case, f"{where} {key}") < 0:
                raise KbError(f"{where}: {key} is negative in {case.name}")
        if _value(task.bytes_moved, case, f"{where} bytes_moved") == 0:
            raise KbError(f"{where}: bytes_moved is 0 in {case.name}: no program moves nothing")


def _check_value(argument: Argument, case: Case, where: str) -> None:
    here = f"{where} argument {argument.name!r}"
    if argument.kind != "scalar":
        for dim in argument.shape:
            value = _value(dim, case, here)
            if value != int(value) or value < 1:
                raise KbError(f"{here}: {dim!r} is {value} in {case.name}; a dimension is a positive integer")
        return
    value = _value(argument.name if argument.value is None else argument.value, case, here)
    bits = _INTEGER_RANGE.get(argument.dtype)
    if bits is not None and (value != int(value) or not -(1 << bits) <= value < 1 << bits):
        raise KbError(f"{here}: {value} in {case.name} does not fit {argument.dtype}")


def _value(expression: str | int | float, case: Case, where: str) -> int | float:
    try:
        value = arithmetic(expression, case.sizes)
    except (KbError, OverflowError) as error:
        raise KbError(f"{where}, {case.name}: {error}") from error
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise KbError(f"{where}, {case.name}: {expression!r} is {value}, not a finite number")
    return value


def _sources(folder: Path, language: str, entry: str) -> tuple[str, str]:
    source = _read(folder / SOURCES[language])
    if language == "cuda" and entry not in source:
        raise KbError(f"{folder / SOURCES[language]} defines no function {entry!r}, the task's entry")
    path = folder / "reference.py"
    reference = _read(path)
    try:
        tree = ast.parse(reference)
    except (SyntaxError, ValueError) as error:
        raise KbError(f"{path} is not Python: {error}") from error
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    missing = sorted({"inputs", "reference"} - defined)
    if missing:
        raise KbError(f"{path} defines no function {missing[0]!r} (docs/tasks.md, the reference contract)")
    return source, reference


def _workspace(facts: Mapping[str, Any], where: str) -> int:
    value = facts.get("workspace_bytes", 1 << 30)
    if type(value) is not int or value < 0:
        raise KbError(f"{where}: workspace_bytes must be an integer number of bytes, not {value!r}")
    return value


def _tags(facts: Mapping[str, Any], where: str) -> tuple[str, ...]:
    tags = facts.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise KbError(f"{where}: tags must be a list of strings")
    return tuple(tags)
