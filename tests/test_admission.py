"""The admission test: every shipped task passes it, and tasks that reward nothing or anything do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kb_env.admission import Admission, admit
from kb_env.task import builtin_names, load_task
from kb_env.types import Case, Task

CASES = (Case("check0", {"rows": 5, "cols": 1000}), Case("check1", {"rows": 33, "cols": 129}))


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_task_is_admitted(name: str) -> None:
    admission = admit(load_task(name))
    assert admission.ok, "\n".join(str(row) for row in admission.rows if not row.ok)
    names = {row.name for row in admission.rows}
    assert {"zeros", "a constant", "the mean", "result of other inputs", "0.1 % untouched (zero)"} <= names
    for argument in load_task(name).arguments:
        if argument.kind == "input":
            assert {f"copy of {argument.name}", f"{argument.name} ignored (another draw)"} <= names


def failing(admission: Admission) -> set[str]:
    return {row.name for row in admission.rows if not row.ok}


def changed(old: str, new: str) -> Task:
    task = load_task("row_sum")
    assert old in task.reference
    return replace(task, reference=task.reference.replace(old, new))


def test_a_loose_tolerance_is_not_admitted() -> None:
    admission = admit(
        changed('inputs["x"].abs().sum(dim=1)', '3e7 * inputs["x"].abs().sum(dim=1)'), cases=CASES
    )
    assert not admission.ok
    assert {"zeros", "x rounded to 11 bits", "sums and products of 11 bits"} <= failing(admission)


def test_a_tolerance_without_room_for_honest_orders_is_not_admitted() -> None:
    admission = admit(changed('inputs["x"].abs().sum(dim=1)', '0 * inputs["x"].sum(dim=1)'), cases=CASES)
    assert failing(admission) & {"32 running sums", "7 running sums from the end"}


def test_a_task_whose_result_hardly_depends_on_the_input_is_not_admitted() -> None:
    task = changed('{"y": inputs["x"].sum(dim=1)}', '{"y": inputs["x"].sum(dim=1) * 0 + 1}')
    assert {"a constant", "the mean", "x ignored (another draw)", "result of other inputs"} <= failing(
        admit(task, cases=CASES)
    )


def test_a_task_with_a_fixed_draw_is_not_admitted() -> None:
    task = load_task("row_sum")
    fixed = task.reference.replace("generator=generator", "generator=torch.Generator().manual_seed(1)")
    assert "result of other inputs" in failing(admit(replace(task, reference=fixed), cases=CASES))


def test_an_input_that_does_not_matter_is_named() -> None:
    task = load_task("vector_add")
    text = task.reference.replace('inputs["a"] + inputs["b"]', 'inputs["a"] + 0 * inputs["b"]')
    found = failing(admit(replace(task, reference=text), cases=(Case("check0", {"n": 999}),)))
    assert {"b ignored (another draw)", "copy of a"} <= found and "a ignored (another draw)" not in found


def test_a_wrong_baseline_is_not_admitted() -> None:
    task = load_task("row_sum")
    head, _, tail = task.reference.rpartition('inputs["x"].sum(dim=1)')
    admission = admit(
        replace(task, reference=f'{head}inputs["x"].half().sum(dim=1).float(){tail}'), cases=CASES
    )
    assert failing(admission) == {"eager baseline"}
    assert "accepted in 0 of 4" in next(str(row) for row in admission.rows if row.name == "eager baseline")
