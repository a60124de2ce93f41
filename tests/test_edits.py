"""Action text to edits to programs, and back."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.edits import (
    ACTION_LIMIT,
    PROGRAM_LIMIT,
    BadEdit,
    apply_edits,
    diff_action,
    format_edit,
    parse_action,
)
from kb_env.lines import changed_lines
from kb_env.types import Edit

SOURCE = "int a = 1;\nint b = 2;\n\nint main() {\n    return a + b;\n}\n"


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def applied(source: str, action: str) -> str:
    return apply_edits(source, parse_action(action).edits)


# Lines that look like markers and fences, mixed line ends, other scripts: what breaks such formats.
LINE = st.one_of(
    st.sampled_from(
        ["", "a", "a", "b", "}", "=======", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "========", "```"]
    ),
    st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=12),
    st.sampled_from(["größe = 1; // 漢字", "submit", "revert", "</think>", "a\r", "\t x \\"]),
)
NEWLINE = st.sampled_from(["\n", "\n", "\r\n"])


@st.composite
def programs(draw: st.DrawFn) -> str:
    newline = draw(st.one_of(st.just("\n"), st.just("\r\n"), st.none()))
    lines = draw(st.lists(LINE, max_size=12))
    text = "".join(line + (newline or draw(NEWLINE)) for line in lines)
    return text + draw(st.sampled_from(["", "", "tail"]))


@given(programs(), programs())
@settings(deadline=None, max_examples=400)
def test_a_difference_applies_to_exactly_the_new_text(before: str, after: str) -> None:
    assert applied(before, diff_action(before, after)) == after


@given(programs(), st.integers(0, 12), LINE)
@settings(deadline=None, max_examples=300)
def test_one_changed_line_round_trips(before: str, at: int, line: str) -> None:
    lines = before.split("\n")
    lines[at % len(lines) : at % len(lines) + 1] = [line]
    assert applied(before, diff_action(before, "\n".join(lines))) == "\n".join(lines)


@given(st.lists(st.builds(Edit, programs().filter(bool), programs()), min_size=1, max_size=4))
@settings(deadline=None, max_examples=300)
def test_formatted_edits_read_back(edits: list[Edit]) -> None:
    parsed = parse_action(f"Some prose.\n\n{format_edit(edits)}\nMore prose, submit?")
    assert parsed.kind == "edits"
    assert parsed.edits == tuple(edits)


@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("utf-8", "surrogateescape"))))
@settings(deadline=None)
def test_any_text_is_an_action_or_a_bad_edit(text: str) -> None:
    try:
        action = parse_action(text)
        apply_edits(SOURCE, action.edits)
    except BadEdit as error:
        assert str(error)


def test_small_differences_are_small_blocks() -> None:
    before = "".join(f"line {i}\n" for i in range(300))
    after = (
        before.replace("line 40\n", "")
        .replace("line 200\n", "line 200\nnew\n")
        .replace("line 299\n", "last\n")
    )
    action = diff_action(before, after)
    assert applied(before, action) == after
    assert action.count("SEARCH") == 3
    assert len(action) < 400


def test_prose_fences_and_several_blocks() -> None:
    answer = f"""First I change `a`, like this:
```cpp
{block("int a = 1;", "int a = 10;")}```
Then the sum. (submit comes later)
{block("    return a + b;", "    return a - b;")}
```cuda
this fence is prose, because there are blocks
```
submit
"""
    action = parse_action(answer)
    assert action.kind == "edits"
    assert apply_edits(SOURCE, action.edits) == SOURCE.replace("a = 1", "a = 10").replace("a + b", "a - b")


def test_the_last_fence_of_code_is_the_whole_file() -> None:
    answer = "Run\n```bash\nmake\n```\ndraft:\n```cuda\nold\n```\nfinal:\n"
    answer += "````c++\nnew\n```\nstill\n````\n```text\nno\n```\n"
    action = parse_action(answer)
    assert action.kind == "file"
    assert apply_edits(SOURCE, action.edits) == "new\n```\nstill\n"


def test_fences_of_another_language_are_prose() -> None:
    answer = "```python\nclass ModelNew: ...\n```\n```cuda\n__global__ void k();\n```\n"
    assert parse_action(answer, "torch").edits[0].replace == "class ModelNew: ...\n"
    assert parse_action(answer, "cuda").edits[0].replace == "__global__ void k();\n"
    with pytest.raises(BadEdit, match="no edit found"):
        parse_action("```json\n{}\n```")


def test_almost_a_block_is_not_taken_for_a_file() -> None:
    inner = block("a", "b").replace("\n", "\n  ")
    with pytest.raises(BadEdit, match="first column"):
        parse_action(f"- change this:\n  ```cuda\n  {inner}```\n")
    with pytest.raises(BadEdit, match="first column"):
        parse_action("<<<<< SEARCH\na\n=====\nb\n>>>>> REPLACE\n")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("revert", "revert"),
        (" SUBMIT.\n", "submit"),
        ("That is enough.\n\n**submit**\n", "submit"),
        ("```\nrevert\n```", "revert"),
        ("revert\nno, rather:\nsubmit", "submit"),
        (f"<think>\n{block('nothing', 'like this')}submit</think>\nrevert", "revert"),
    ],
)
def test_commands(answer: str, kind: str) -> None:
    assert parse_action(answer).kind == kind


def test_a_whole_line_wins_over_parts_of_lines() -> None:
    text = "x = 1;\nmax = 1;\nx = 1;2\n"
    assert applied(text, block("x = 1;", "y")) == "y\nmax = 1;\nx = 1;2\n"


def test_deleting_whole_lines_leaves_no_blank_line() -> None:
    action = "<<<<<<< SEARCH\nint b = 2;\n=======\n>>>>>>> REPLACE"
    assert applied(SOURCE, action) == SOURCE.replace("int b = 2;\n", "")


def test_crlf_files_stay_crlf() -> None:
    source = SOURCE.replace("\n", "\r\n")
    edited = applied(source, block("int a = 1;\nint b = 2;", "int a = 3;\nint é = 2;\nint c;"))
    assert edited == source.replace("a = 1;", "a = 3;").replace("int b = 2;", "int é = 2;\r\nint c;")
    answer = block("int a = 1;", "int a = 3;\nint c;").replace("\n", "\r\n")
    assert applied(SOURCE, answer) == SOURCE.replace("a = 1;", "a = 3;\nint c;")
    mixed = "a\r\nb\nc\r\n"
    assert applied(mixed, block("b", "B")) == "a\r\nB\nc\r\n"


def test_blocks_all_match_the_program_before() -> None:
    with pytest.raises(BadEdit, match="block 2: SEARCH not found"):
        applied(SOURCE, block("int a = 1;", "int z = 1;") + block("int z = 1;", "int y = 1;"))


def test_errors_name_block_reason_and_lines() -> None:
    with pytest.raises(
        BadEdit, match=r"(?s)block 1: SEARCH not found.*white space only.*\n +5 \|     return a \+ b;"
    ):
        applied(SOURCE, block("  return a  + b;", "x"))
    with pytest.raises(BadEdit, match=r"(?s)not found.*\n +1 \| int a = 1;\n +2 \| int b = 2;"):
        applied(SOURCE, block("int aa = 1;\nint b = 3;", "x"))
    with pytest.raises(BadEdit, match=r"block 1: SEARCH has 3 matches \(lines 1, 2, 4\)"):
        applied(SOURCE, block("int", "x"))
    with pytest.raises(BadEdit, match="blocks 1 and 2 are overlapping at line 2"):
        applied(SOURCE, block("int a = 1;\nint b = 2;", "x") + block("b = 2;", "y"))
    with pytest.raises(BadEdit, match="only block"):
        applied(SOURCE, block("int a = 1;", "x") + "<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n")


@pytest.mark.parametrize(
    "answer",
    [
        "<<<<<<< SEARCH\nint a = 1;\n",
        "<<<<<<< SEARCH\nint a = 1;\n=======\nint a",
        block("int a = 1;", "x") + "<<<<<<< SEARCH\nint b",
        "<<<<<<< SEARCH\nint a = 1;\n" + block("int b = 2;", "y"),
        "<<<<<<< SEARCH\nint a = 1;\n=======\nint z;\n" + block("int b = 2;", "y"),
        "Here it is:\n```cuda\nint main() {",
    ],
)
def test_truncated_answers_change_nothing(answer: str) -> None:
    with pytest.raises(BadEdit, match="truncated"):
        parse_action(answer)


def test_hostile_actions_fail_fast_and_clearly() -> None:
    start = time.monotonic()
    for action, words in (
        ("x" * 10_000_000, "10000000 characters"),
        (bytes(range(256)).decode("latin-1") * 100, "U\\+0000 at position 0"),
        ("abc\ud800", "U\\+D800"),
        ("<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n" * 20_000, "more than 200 blocks"),
        ("", "no edit found"),
    ):
        with pytest.raises(BadEdit, match=words):
            parse_action(action)
    big = "a" * (PROGRAM_LIMIT - 1)
    with pytest.raises(BadEdit, match="at least 10000 matches"):
        apply_edits(big, [Edit("a", "b")] * 200)
    with pytest.raises(BadEdit, match="overlapping"):
        apply_edits(SOURCE, [Edit("int a", "b")] * 2)
    with pytest.raises(BadEdit, match="400000 are allowed"):
        apply_edits(SOURCE, [Edit("int a = 1;", "x" * PROGRAM_LIMIT)])
    with pytest.raises(BadEdit, match="Nearest lines"):
        apply_edits("x\n" * (PROGRAM_LIMIT // 2), [Edit("y" * (ACTION_LIMIT - 100), "")])
    with pytest.raises(BadEdit, match="not bytes"):
        parse_action(b"submit")  # type: ignore[arg-type]
    assert time.monotonic() - start < 5


def test_huge_programs_are_compared_in_bounded_time() -> None:
    before = "".join(f"{i % 7}\n" for i in range(100_000))
    after = before[:1000] + "new\n" + before[1000:] + "last\n"
    start = time.monotonic()
    assert applied(before, diff_action(before, after)) == after
    assert changed_lines(before.split("\n"), after.split("\n")) == [(500, 100_000, 500, 100_002)]
    assert changed_lines(before.split("\n"), before.split("\n")) == []
    assert time.monotonic() - start < 3
