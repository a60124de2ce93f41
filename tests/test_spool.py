"""The spool: one file per request, nothing evaluated twice, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paper import PaperEvaluator

from experiments import cli, evaluate
from experiments.streams import Conditions, Stream, play_stream
from kb_env.backends import make_evaluator
from kb_env.evaluators import Purpose
from kb_env.spool import ATTEMPTS, Request, Spool, SpoolEvaluator, SpoolWorker
from kb_env.task import load_task
from kb_env.types import KbError, Program

TASK = load_task("softmax")
FAST = Program("softmax", "// us: 500\nvoid launch();")


@contextmanager
def workers(path: Path, *evaluators: PaperEvaluator) -> Iterator[None]:
    """Workers in threads, each with its own evaluator, until the block ends."""
    stop = threading.Event()

    def loop(worker: SpoolWorker) -> None:
        while not stop.is_set():
            worker.work()
            time.sleep(0.005)

    threads = [threading.Thread(target=loop, args=(SpoolWorker(path, item),)) for item in evaluators]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def measured(*evaluators: PaperEvaluator) -> int:
    return sum(len(item.calls) for item in evaluators)


def test_episodes_through_a_spool_equal_direct_ones(tmp_path: Path) -> None:
    stream, conditions = Stream("hillclimb", "hillclimb", 0, ("softmax", "gelu")), Conditions(steps=3)
    with workers(tmp_path, PaperEvaluator()):
        found = list(play_stream(stream, SpoolEvaluator(tmp_path, wait=30, poll=0.01), conditions))
    direct = list(play_stream(stream, PaperEvaluator(), conditions))
    assert [(e.best_speedup, len(e.steps), e.best.text) for e in found] == [
        (e.best_speedup, len(e.steps), e.best.text) for e in direct
    ]


def test_many_rollouts_and_workers_evaluate_each_request_once(tmp_path: Path) -> None:
    crew = [PaperEvaluator() for _ in range(3)]
    programs = [Program("softmax", f"// us: {us}\nvoid launch();") for us in range(100, 120)]
    speedups: list[list[float | None]] = []

    def ask() -> None:
        evaluator = SpoolEvaluator(tmp_path, wait=30, poll=0.01)
        speedups.append([evaluator.evaluate(TASK, program).speedup for program in programs])

    with workers(tmp_path, *crew):
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert speedups == [[pytest.approx(1000 / us) for us in range(100, 120)]] * 4
    assert measured(*crew) == len(programs) and Spool(tmp_path).pending() == []


def test_purposes_are_told_apart_and_prepare_answers_without_measuring(tmp_path: Path) -> None:
    paper = PaperEvaluator()
    evaluator = SpoolEvaluator(tmp_path, wait=30, poll=0.01)
    with workers(tmp_path, paper):
        prepared = evaluator.prepare(TASK, FAST)
        assert prepared.key == paper.prepare(TASK, FAST).key and measured(paper) == 0
        assert evaluator.measure(prepared).speedup == pytest.approx(2.0)
        against = evaluator.measure(prepared, Purpose(baseline=FAST, baseline_name="best", profile=True))
    assert against.speedup == pytest.approx(1.0) and against.profile is not None


def test_a_damaged_result_is_worked_out_again_and_a_foreign_one_refused(tmp_path: Path) -> None:
    paper = PaperEvaluator()
    evaluator = SpoolEvaluator(tmp_path, wait=30, poll=0.01)
    with workers(tmp_path, paper):
        evaluator.evaluate(TASK, FAST)
        (result,) = (tmp_path / "results").iterdir()
        result.write_bytes(result.read_bytes()[:-9])
        assert evaluator.evaluate(TASK, FAST).speedup == pytest.approx(2.0) and measured(paper) == 2
        evaluator.evaluate(TASK, Program("softmax", "// us: 250"))
    first, second = sorted((tmp_path / "results").iterdir())
    first.write_bytes(second.read_bytes())
    with pytest.raises(KbError, match="answers something else"):
        Spool(tmp_path).answer(first.stem)


def test_a_request_that_breaks_its_workers_ends_in_an_error_and_may_be_asked_again(tmp_path: Path) -> None:
    bad = Program("softmax", "// fault: HARNESS")
    worker, spool = SpoolWorker(tmp_path, PaperEvaluator()), Spool(tmp_path)
    spool.ask(Request(TASK, bad, Purpose()))
    for _ in range(ATTEMPTS):
        with pytest.raises(KbError, match="disk is full"):
            worker.work()
        assert len(spool.pending()) == 1
    assert worker.work() == 1
    spool.ask(Request(TASK, FAST, Purpose()))
    (tmp_path / "requests" / "0.msgpack").write_bytes(b"junk")
    assert worker.work() == 2
    with pytest.raises(KbError, match="gave up"):
        SpoolEvaluator(tmp_path, wait=5)._answer(Request(TASK, bad, Purpose()))
    with pytest.raises(KbError, match="kb evaluate"):
        SpoolEvaluator(tmp_path, wait=0.05, poll=0.01).evaluate(TASK, bad)


def test_a_killed_workers_claim_falls(tmp_path: Path) -> None:
    name = Spool(tmp_path).ask(Request(TASK, FAST, Purpose()))
    hold = (
        "import sys, time; from pathlib import Path; from kb_env.spool import Spool\n"
        "with Spool(Path(sys.argv[1])).claim(sys.argv[2]) as n: print(n, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path), name], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        worker = SpoolWorker(tmp_path, PaperEvaluator())
        assert worker.work() == 0
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert worker.work() == 1 and worker.work() == 0


def test_a_spool_is_one_devices_and_its_owners_alone(tmp_path: Path) -> None:
    SpoolWorker(tmp_path, PaperEvaluator())
    with pytest.raises(KbError, match="one folder per device"):
        SpoolWorker(tmp_path, PaperEvaluator(device="Other"))
    tmp_path.chmod(0o777)
    with pytest.raises(KbError, match="chmod 700"):
        Spool(tmp_path)


def test_kb_evaluate_once_works_off_what_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "make_evaluator", lambda backend: PaperEvaluator())
    evaluator = make_evaluator(f"spool:{tmp_path}")
    assert isinstance(evaluator, SpoolEvaluator)
    evaluator.spool.ask(Request(TASK, FAST, Purpose()))
    assert cli.main(["evaluate", str(tmp_path), "--backend", "sim", "--once"]) == 0
    assert evaluator.device == "Paper"
    assert len(list((tmp_path / "results").iterdir())) == 1
    assert cli.main(["evaluate", str(tmp_path), "--backend", f"spool:{tmp_path}"]) == 2


def test_kb_evaluate_makes_no_folder_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "make_evaluator", lambda backend: PaperEvaluator())
    missing = tmp_path / "mistyped"
    words = ["evaluate", str(missing), "--backend", "sim", "--once"]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "is no spool" in error and "--create" in error
    assert not missing.exists()
    assert cli.main(["evaluate", str(tmp_path), "--backend", "sim", "--once"]) == 2  # a folder, but no spool
    assert not list(tmp_path.iterdir())
    assert cli.main([*words, "--create"]) == 0 and (missing / "device.msgpack").exists()
