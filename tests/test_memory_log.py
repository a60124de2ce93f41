"""The log loses nothing acknowledged and never yields a wrong record, whatever happens to its files."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.types import KbError
from memory.log import Damage, Log, frames

WRITER = """
import sys
from pathlib import Path
from memory.log import Log
log = Log(Path(sys.argv[1]), sync="none", segment_bytes=20000)
for number in range(int(sys.argv[2]), 1 << 30):
    log.append([f"{number}:".encode() + b"x" * (number * 37 % 900)])
    print(number, flush=True)
"""


def payloads(log: Log) -> list[bytes]:
    return [payload for _, payload in log.scan()]


def test_reads_back_in_order_over_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_bytes=100)
    written = [os.urandom(n) for n in range(60)]
    positions = [log.append([item])[0] for item in written]
    assert len(log.segments()) > 5
    assert payloads(Log(tmp_path)) == written
    assert [log.read(position) for position in positions] == written
    assert payloads(log)[40:] == [payload for _, payload in log.scan(positions[40])]


def test_a_frame_inside_a_payload_is_never_taken_for_one(tmp_path: Path) -> None:
    first = Log(tmp_path / "a")
    first.append([b"genuine"])
    stolen = first.segments()[0].path.read_bytes()
    log = Log(tmp_path / "b")
    log.append([b"before", stolen + b"tail", b"after"])
    path = log.segments()[0].path
    raw = bytearray(path.read_bytes())
    raw[22 + 8] ^= 0xFF  # damage the length of the second frame: the reader must resynchronise
    path.write_bytes(raw)
    damage: list[Damage] = []
    assert [payload for _, payload in log.scan(None, damage)] == [b"before", b"after"]
    assert [item.kind for item in damage] == ["middle"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12), st.data())
def test_bit_flips_lose_only_what_they_hit(items: list[bytes], data: st.DataObject) -> None:
    marker = b"\x81markers"
    from memory.log import frame

    pieces = [frame(marker, item) for item in items]
    raw = bytearray(b"".join(pieces))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << data.draw(st.integers(0, 7))
    hit, end = 0, len(pieces[0])
    while place >= end:
        hit += 1
        end += len(pieces[hit])
    found = [payload for _, payload in frames(bytes(raw), 0, marker) if payload is not None]
    assert found == items[:hit] + items[hit + 1 :]


def test_kill_at_random_moments(tmp_path: Path) -> None:
    rng, acknowledged = random.Random(5), -1
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(acknowledged + 1)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            last = int(child.stdout.readline())
            time.sleep(rng.random() * 0.03)
            child.send_signal(signal.SIGKILL)
            for line in child.stdout.read().splitlines():
                last = int(line)
        log = Log(tmp_path)
        numbers = [int(payload.split(b":")[0]) for payload in payloads(log)]
        # Everything acknowledged is there, in order; one more may have been written unseen.
        assert numbers[: last + 1] == list(range(last + 1)) and len(numbers) <= last + 2
        acknowledged = numbers[-1]


def test_a_torn_tail_is_moved_away_and_reported(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append([b"one", b"two"])
    path = log.segments()[0].path
    whole = path.read_bytes()
    for cut in range(20, len(whole)):
        path.write_bytes(whole[:cut])
        other = Log(tmp_path)
        other.append([b"three"])
        assert payloads(other) == [b"one", b"three"]
        assert other.cut == ([Damage(1, 19, cut - 19, "tail")] if cut > 19 else [])


def _append(folder: str, name: str, count: int) -> None:
    log = Log(Path(folder), sync="none", segment_bytes=3000)
    for number in range(count):
        log.append([f"{name}{number}".encode(), f"{name}{number}b".encode()])


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(str(tmp_path), name, 150)) for name in "ab"]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / "gen-000001").exists():
            now = payloads(Log(tmp_path))
            assert len(now) >= seen and all(item[:1] in (b"a", b"b") for item in now)
            seen = len(now)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = payloads(Log(tmp_path))
    for name in "ab":
        mine = [item.decode() for item in found if item.startswith(name.encode())]
        assert mine == [f"{name}{n}{end}" for n in range(150) for end in ("", "b")]


def test_a_killed_compaction_changes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append([b"keep", b"drop"])

    def dies() -> object:
        yield b"keep"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), log.locked():
        log.rewrite(dies())  # type: ignore[arg-type]
    assert payloads(Log(tmp_path)) == [b"keep", b"drop"]
    with log.locked():
        log.rewrite(iter([b"keep"]))
    assert payloads(Log(tmp_path)) == [b"keep"]
    log.append([b"more"])
    assert payloads(Log(tmp_path)) == [b"keep", b"more"]


@pytest.mark.skipif(not os.path.exists("/dev/shm"), reason="needs a small file system")
def test_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    import resource

    log = Log(tmp_path)
    log.append([b"kept"])
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        with pytest.raises(KbError, match="nothing was lost"):
            log.append([b"y" * 5000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, old)
    assert payloads(Log(tmp_path)) == [b"kept"]
    log.append([b"goes on"])
    assert payloads(Log(tmp_path)) == [b"kept", b"goes on"]
