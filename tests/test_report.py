"""The report page: its charts, its escaping, and its behaviour in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from test_experiments import BEST, BETTER, WORSE, episode

from experiments import report
from experiments.charts import Line, lines
from experiments.run_folder import RunFolder

EVIL = "```cuda\n// us: 400\n// <script>document.title='owned'</script><img src=x onerror=alert(1)>\nvoid f();\n```"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    folder.begin({"args": {"tasks": "softmax,gelu"}})
    for seed in (0, 1):
        folder.finish(episode([WORSE, EVIL, "gibberish\x1b[2J\u202e", "submit"], "a<b>", seed))
        folder.finish(episode([BETTER, BEST, "submit"], "plain", seed, "gelu"))
    report.write_report(folder)
    return folder.path


def test_charts_are_whole_svg_files_and_say_that_times_are_modelled(run: Path) -> None:
    for name in ("fast_p", "best_so_far", "tasks", "techniques", "cost"):
        text = (run / "charts" / f"{name}.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        if name in ("fast_p", "best_so_far", "tasks"):
            assert "modelled" in text and "measured" not in text


def test_the_summary_holds_the_numbers_of_the_charts(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    tasks = {(bar["group"], bar["name"]): bar["value"] for bar in summary["tasks"]}
    assert tasks["softmax", "a<b>"] == pytest.approx(2.5) and tasks["gelu", "plain"] == pytest.approx(5.0)
    assert {row["policy"]: row["steps"] for row in summary["costs"]} == {"a<b>": 8, "plain": 6}


def test_the_report_says_what_failed_and_why(run: Path) -> None:
    rows = json.loads((run / "summary.json").read_text())["endings"]
    found = {(row["policy"], row["status"]): (row["steps"], row["reasons"]) for row in rows}
    assert found["a<b>", "TIMED"] == (6, "") and found["a<b>", "BAD_EDIT"][0] == 2
    assert found["a<b>", "BAD_EDIT"][1].startswith(
        "2 x BAD_EDIT: the action is not plain text: character U+#B"
    )
    assert "How steps ended" in (run / "report.html").read_text()


def test_nothing_a_candidate_wrote_is_markup(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert page.count("<script") == 1 and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&lt;img src=x" in page and "a&lt;b&gt;" in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


def test_long_texts_are_cut_and_say_so() -> None:
    shown = report.visible("x" * (report.SHOWN + 7))
    assert shown.endswith("(cut: 7 more characters)")


def test_a_chart_without_data_is_still_one() -> None:
    ElementTree.fromstring(lines("none", ("x", "y"), []))
    ElementTree.fromstring(lines("one point", ("x", "y"), [Line("a", (1.0,), (1.0,))]))


PROBE = """<script>
const seen = [];
addEventListener("error", (e) => seen.push(e.message));
addEventListener("load", () => {
  const rows = () => Array.from(document.querySelectorAll("#episodes tbody tr"));
  const open = () => rows().filter((r) => !r.hidden).length;
  const out = {title: document.title, all: open()};
  const policy = document.querySelector("select[data-column='1']");
  policy.value = "plain"; policy.dispatchEvent(new Event("change"));
  out.plain = open(); out.shown = document.getElementById("shown").textContent;
  out.sections = document.querySelectorAll("section.episode:not([hidden])").length;
  policy.value = ""; policy.dispatchEvent(new Event("change"));
  const word = document.getElementById("word");
  word.value = "softmax"; word.dispatchEvent(new Event("input")); out.word = open();
  word.value = ""; word.dispatchEvent(new Event("input"));
  const head = document.querySelectorAll("#episodes th")[3];
  head.click(); out.down = rows()[0].cells[3].textContent;
  head.click(); out.up = rows()[0].cells[3].textContent;
  out.errors = seen;
  const probe = document.createElement("pre"); probe.id = "probe"; probe.textContent = JSON.stringify(out);
  document.body.append(probe);
});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_the_page_opens_filters_and_sorts_in_chromium(run: Path, tmp_path: Path) -> None:
    page = (run / "report.html").read_text()
    # The probe is a script of the test: only for it the page's policy is lifted.
    probed = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", PROBE, page)
    (tmp_path / "probed.html").write_text(probed)
    (tmp_path / "injected.html").write_text(
        page.replace("<h1>", "<script>document.title='owned'</script><h1>")
    )
    found = json.loads(_between(_open(tmp_path / "probed.html").stdout, '<pre id="probe">', "</pre>"))
    assert found == {
        "title": "kb-env run", "all": 4, "plain": 2, "shown": "2", "sections": 2, "word": 2,
        "down": "5.000", "up": "2.500", "errors": [],
    }  # fmt: skip
    injected = _open(tmp_path / "injected.html")
    assert "<title>kb-env run</title>" in injected.stdout and "CONSOLE" in injected.stderr
    (tmp_path / "plain.html").write_text(page)
    assert "CONSOLE" not in _open(tmp_path / "plain.html").stderr


def _command(profile: Path, page: Path, *words: str) -> list[str]:
    quiet = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]
    return ["chromium", *quiet, f"--user-data-dir={profile / 'profile'}", *words, f"file://{page}"]


def _open(page: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(page.parent, page, "--dump-dom"), capture_output=True, text=True, timeout=100, check=True
    )


def _between(text: str, before: str, after: str) -> str:
    return text.split(before)[1].split(after)[0]
