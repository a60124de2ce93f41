"""Recordings: what was found comes back, what was not is UNRECORDED, damage is tolerated."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import PaperEvaluator

from kb_env.env import CudaEnv
from kb_env.evaluators import Evaluator, Purpose
from kb_env.frames import FrameWriter, read_frames, scan
from kb_env.records import pack
from kb_env.replay import MAGIC, Recorder, ReplayEvaluator, read_recording
from kb_env.task import load_task
from kb_env.types import KbError, Program, Status

TASK = load_task("softmax")


def same(a: object, b: object) -> bool:
    """Equality that takes NaN for NaN."""
    return pack(a) == pack(b)


def program(text: str) -> Program:
    return Program(TASK.name, f"{TASK.source}{text}\n")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "recording.kb"


def test_what_was_recorded_comes_back_equal(path: Path) -> None:
    recorder = Recorder(PaperEvaluator(noise=0.1), path)
    assert isinstance(recorder, Evaluator)
    programs = [program("// us: 500"), program("// fault: WRONG"), program("// fault: BUILD_FAILED")]
    found = [recorder.evaluate(TASK, p) for p in programs[:2]]
    failed = recorder.prepare(TASK, programs[2])
    paired = recorder.evaluate(TASK, programs[0], Purpose(programs[1], "best"))
    recorder.close()

    replay = ReplayEvaluator(path)
    assert isinstance(replay, Evaluator)
    assert (replay.device, replay.source, replay.trust) == ("Paper", "modelled", "sealed")
    assert same([replay.evaluate(TASK, p) for p in programs[:2]], found)
    assert replay.prepare(TASK, programs[2]).fault == failed.fault
    assert replay.evaluate(TASK, programs[2]).status is Status.BUILD_FAILED
    assert same(replay.evaluate(TASK, programs[0], Purpose(programs[1], "best")), paired)
    assert replay.recorded(TASK) == tuple(programs)


def test_what_was_not_recorded_is_unrecorded(path: Path) -> None:
    recorder = Recorder(PaperEvaluator(), path)
    recorder.evaluate(TASK, program("// us: 500"))
    recorder.evaluate(TASK, program("// us: 250"))
    replay = ReplayEvaluator(path)
    assert replay.evaluate(TASK, program("// us: 501")).status is Status.UNRECORDED
    assert replay.evaluate(load_task("gelu"), program("// us: 500")).status is Status.UNRECORDED
    against = Purpose(program("// us: 500"), "best")
    assert replay.evaluate(TASK, program("// us: 250"), against).status is Status.UNRECORDED
    env = CudaEnv(TASK, evaluator=replay)
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step("```\nvoid launch();\n```")
    assert (reward, terminated, truncated, info["ended"]) == (0.0, False, True, 4.0)
    assert env.episode.ended == "fault: UNRECORDED"
    assert env.episode.steps[0].status is Status.UNRECORDED


def test_the_same_machine_code_shares_measurements(path: Path) -> None:
    recorder = Recorder(PaperEvaluator(), path)
    found = recorder.evaluate(TASK, program("// us: 500"))
    recorder.prepare(TASK, program("// us: 500\n// note 7"))
    replay = ReplayEvaluator(path)
    assert same(replay.evaluate(TASK, program("// us: 500\n// note 7")), found)
    assert same(replay.evaluate(TASK, program("// us: 500"), Purpose(TASK.initial, "best")), found)


def test_an_episode_replays_to_the_bit(path: Path) -> None:
    def play(evaluator: Evaluator) -> list[tuple[float, str]]:
        env = CudaEnv(TASK, evaluator=evaluator, evaluate_on_reset=True)
        env.reset(seed=3)
        for text in ("// us: 500", "// us: 900", "// fault: WRONG", "// us: 400", "// us: 100"):
            env.step(f"```\n{program(text).text}```")
        return [(step.reward, step.feedback) for step in env.episode.steps]

    played = play(Recorder(PaperEvaluator(noise=0.05), path))
    assert play(ReplayEvaluator(path)) == played
    size = path.stat().st_size
    play(Recorder(PaperEvaluator(noise=0.05), path))
    assert play(ReplayEvaluator(path)) == played  # the first recording of a pair counts
    assert path.stat().st_size >= size


@given(st.integers(0, 10_000), st.binary(max_size=40))
@settings(deadline=None, max_examples=60)
def test_a_torn_tail_costs_only_itself(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("torn") / "file"
    writer = FrameWriter(path, MAGIC)
    frames = [bytes([i]) * (i * 50) for i in range(6)]
    with writer:
        for frame in frames:
            writer.append(frame)
    whole = path.read_bytes()
    torn = whole[: cut % (len(whole) + 1)]
    path.write_bytes(torn)
    kept = [payload for _, payload in scan(torn, len(MAGIC))] if len(torn) >= len(MAGIC) else []
    assert frames[: len(kept)] == kept
    if len(torn) >= len(MAGIC):
        path.write_bytes(torn + junk)
    again = FrameWriter(path, MAGIC)
    with again:
        again.append(b"after")
    assert read_frames(path, MAGIC)[-1] == b"after"
    assert read_frames(path, MAGIC)[: len(kept)] == kept
    writer.close()
    again.close()


def test_every_damaged_byte_is_noticed(path: Path) -> None:
    recorder = Recorder(PaperEvaluator(), path)
    recorder.evaluate(TASK, program("// us: 500"))
    recorder.close()
    data = path.read_bytes()
    whole = read_recording(path)
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        try:
            assert len(read_recording(path)) < len(whole)
        except KbError as error:
            assert str(path) in str(error)


def test_two_writers_take_turns(path: Path) -> None:
    first, second = FrameWriter(path, MAGIC), FrameWriter(path, MAGIC)
    for number in range(10):
        with first if number % 3 else second as writer:
            writer.append(bytes([number]))
    assert read_frames(path, MAGIC) == [bytes([number]) for number in range(10)]
    first.close()
    second.close()


def test_many_processes_record_into_one_file(path: Path) -> None:
    children = []
    shared = Recorder(PaperEvaluator(), path)
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            recorder = shared if child < 2 else Recorder(PaperEvaluator(), path)
            for number in range(10):
                recorder.evaluate(TASK, program(f"// us: {child * 100 + number + 1}"))
            os._exit(0)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert len(ReplayEvaluator(path).recorded(TASK)) == 40


def test_recordings_are_not_mixed_and_errors_are_clear(path: Path, tmp_path: Path) -> None:
    Recorder(PaperEvaluator(), path).close()
    with pytest.raises(KbError, match="record to another file"):
        Recorder(PaperEvaluator(device="Other"), path)
    other = tmp_path / "other"
    other.write_text("hello, world, this is text")
    for opening in (lambda: ReplayEvaluator(other), lambda: Recorder(PaperEvaluator(), other)):
        with pytest.raises(KbError, match="is no kb-env recording"):
            opening()
    assert other.read_text() == "hello, world, this is text"
    with pytest.raises(KbError, match="cannot read"):
        ReplayEvaluator(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(KbError, match="holds no recording"):
        ReplayEvaluator(tmp_path / "empty")


def test_evaluators_of_recordings_pickle(path: Path) -> None:
    recorder = pickle.loads(pickle.dumps(Recorder(PaperEvaluator(), path)))
    found = recorder.evaluate(TASK, program("// us: 500"))
    replay = pickle.loads(pickle.dumps(ReplayEvaluator(path)))
    assert same(replay.evaluate(TASK, program("// us: 500")), found)
