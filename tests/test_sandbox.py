"""The sandbox, on each rung of its ladder that this machine has."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kb_env import sandbox
from kb_env.sandbox import Box, Outcome, describe, layers, run_boxed
from kb_env.types import KbError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SMALL = Box(seconds=10.0, memory_bytes=1 << 30, processes=16, open_files=64, file_bytes=1 << 20)
_FALLBACK = sandbox.LANDLOCK | sandbox.SECCOMP


def rungs() -> list[object]:
    """The rung in use, the one of a default container, and that of a plain user there."""
    own = sandbox.USER if os.geteuid() == 0 else 0
    found = [("strongest", layers()), ("container", _FALLBACK | own), ("plain", _FALLBACK)]
    user = sandbox.NAMESPACES | sandbox.USER_NAMESPACE | sandbox.NETWORK | _FALLBACK
    found.append(("user-namespace", user))
    return [pytest.param(bits, id=name) for name, bits in found if sandbox._works(bits, SMALL)]


@pytest.fixture(params=rungs())
def bits(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def run(script: str, bits: int, box: Box = SMALL, stdin: bytes = b"") -> Outcome:
    return sandbox._run(["/bin/sh", "-c", script], box, stdin, bits)


def python(script: str, bits: int, box: Box = SMALL) -> Outcome:
    # The interpreter's own folders are what this test lets the command read.
    readable = tuple({Path(sys.base_prefix).resolve(), Path(sys.executable).resolve().parent})
    interpreter = str(Path(sys.executable).resolve())
    return sandbox._run(
        [interpreter, "-IS", "-c", script], Box(**{**vars(box), "readable": readable}), b"", bits
    )


def alive(marker: bytes) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return [command for command in found if marker in command]


def test_output_input_and_exit_code(bits: int) -> None:
    outcome = run("cat; echo word >&2; exit 7", bits, stdin=b"in")
    assert (outcome.exit, outcome.signal, outcome.timed_out) == (7, None, False)
    assert (outcome.stdout, outcome.stderr) == (b"in", b"word\n")


def test_signals_are_told(bits: int) -> None:
    assert run("kill -SEGV $$", bits).signal == signal.SIGSEGV


def test_record_descriptor(bits: int) -> None:
    box = Box(**{**vars(SMALL), "record_bytes": 5})
    outcome = run("echo 0123456789 >&3; echo ok", bits, box)
    assert (outcome.record, outcome.stdout) == (b"01234", b"ok\n")
    assert run("echo x >&3", bits).exit != 0  # not there unless asked for


def test_environment_is_clean(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KB_SECRET", "do not tell")
    box = Box(**{**vars(SMALL), "environment": {"GIVEN": "1"}})
    outcome = run("env; ls -l /proc/self/fd 2>/dev/null", bits, box)
    assert b"do not tell" not in outcome.stdout and b"GIVEN=1" in outcome.stdout


def test_other_files_cannot_be_read_or_written(bits: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not tell")
    secret.chmod(0o644)
    outcome = run(
        f"cat {secret} /etc/passwd /root/.profile; echo x > {tmp_path}/new; echo x > /usr/new", bits
    )
    assert outcome.stdout == b""
    assert not (tmp_path / "new").exists() and not Path("/usr/new").exists()


def test_scratch_and_readable_folders(bits: int, tmp_path: Path) -> None:
    given, scratch = tmp_path / "given", tmp_path / "scratch"
    given.mkdir(mode=0o755)
    scratch.mkdir()
    (given / "text").write_text("hello")
    box = Box(**{**vars(SMALL), "readable": (given,), "scratch": scratch})
    outcome = run(
        f"cat {given}/text > copy; echo x > {given}/new; mkdir sub; mv copy sub/moved; rm -f none", bits, box
    )
    assert (scratch / "sub" / "moved").read_text() == "hello", outcome.stderr
    assert not (given / "new").exists()


def test_time_limit_kills_the_whole_tree(bits: int) -> None:
    """Also children in other sessions, whose parents are gone."""
    box = Box(**{**vars(SMALL), "seconds": 0.5})
    started = time.monotonic()
    outcome = run("(setsid sleep 7171.5 &) ; setsid setsid sleep 7171.5 & sleep 7171.5", bits, box)
    assert outcome.timed_out and outcome.exit is None
    assert time.monotonic() - started < 4
    assert not alive(b"7171.5")


def test_what_the_command_leaves_is_killed(bits: int) -> None:
    outcome = run("(setsid sleep 7272.5 >/dev/null 2>&1 &); exit 0", bits)
    assert outcome.exit == 0 and not alive(b"7272.5")


def test_fork_bomb_is_bounded(bits: int) -> None:
    if not bits & (sandbox.USER | sandbox.USER_NAMESPACE):
        pytest.skip("limits on processes are shared with the caller on this rung")
    box = Box(**{**vars(SMALL), "seconds": 1.0})
    outcome = run("bomb() { bomb 7373.5 | bomb 7373.5 & }; bomb; sleep 7373.5", bits, box)
    assert outcome.timed_out or outcome.exit is not None
    assert not alive(b"7373.5") and not alive(b"bomb()")


def test_memory_and_file_limits(bits: int, tmp_path: Path) -> None:
    outcome = python("b = bytearray(3 << 30)", bits)
    assert outcome.exit == 1 and b"MemoryError" in outcome.stderr
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    box = Box(**{**vars(SMALL), "scratch": scratch})
    outcome = run("head -c 9000000 /dev/zero > big", bits, box)
    assert outcome.signal == signal.SIGXFSZ or outcome.exit != 0
    assert (scratch / "big").stat().st_size <= 1 << 20


def test_output_is_drained_and_bounded(bits: int) -> None:
    box = Box(**{**vars(SMALL), "output_bytes": 1000})
    outcome = run("head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2; exit 5", bits, box)
    assert (outcome.exit, len(outcome.stdout), len(outcome.stderr)) == (5, 1000, 1000)


def test_no_network(bits: int) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        script = (
            f"import _socket as s; c = s.socket(s.AF_INET, s.SOCK_STREAM); c.connect(('127.0.0.1', {port}))"
        )
        outcome = python(script, bits)
    assert outcome.exit == 1 and b"Error" in outcome.stderr
    assert python("import _socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM)", bits).exit == 1


def test_forbidden_calls_fail(bits: int) -> None:
    script = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, "ptrace"
assert libc.unshare(0x10000000) == -1 and ctypes.get_errno() == 1, "unshare"
assert libc.kill(int(sys.argv[1]), 0) == -1, "kill"
"""
    interpreter = str(Path(sys.executable).resolve())
    box = Box(
        **{
            **vars(SMALL),
            "readable": (Path(sys.base_prefix).resolve(), Path(sys.executable).resolve().parent),
        }
    )
    outcome = sandbox._run([interpreter, "-IS", "-c", script, str(os.getpid())], box, b"", bits)
    if outcome.stderr.endswith(b"AssertionError: kill\n"):
        assert bits == _FALLBACK and not outcome.exit  # an older Landlock has no scope for signals
    assert outcome.exit == 0, outcome.stderr


def test_a_missing_program_is_the_harness_fault(bits: int) -> None:
    with pytest.raises(KbError, match="exec"):
        sandbox._run(["/no/such/program"], SMALL, b"", bits)


def test_it_dies_with_its_caller() -> None:
    """kill -9 of the process that called leaves nothing running."""
    script = "from kb_env.sandbox import Box, run_boxed\nprint('go', flush=True)\n"
    script += "run_boxed(['/bin/sh', '-c', 'setsid sleep 7474.5 & sleep 7474.5'], Box(seconds=60))"
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert caller.stdout is not None and caller.stdout.readline() == b"go\n"
    deadline = time.monotonic() + 10
    while not alive(b"7474.5") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(b"7474.5")
    caller.kill()
    caller.communicate()
    while alive(b"7474.5") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(b"7474.5")


def test_it_is_cheap() -> None:
    run_boxed(["/bin/true"], SMALL)
    times = []
    for _ in range(15):
        started = time.monotonic()
        run_boxed(["/bin/true"], SMALL)
        times.append(time.monotonic() - started)
    assert min(times) < 0.03


def test_report_names_what_is_active_and_what_is_weaker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe().layers
    monkeypatch.setattr(sandbox, "layers", lambda: sandbox.SECCOMP)
    weaker = " ".join(describe().weaker)
    assert "namespaces" in weaker and "Landlock" in weaker and "user id" in weaker
