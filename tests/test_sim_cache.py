"""Compiled kernels in the store, and what a run's process can still do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sim_engine_runner import compile_ptx, launch, needs_nvcc

from kb_env.sim import compiled, confine
from kb_env.sim.machine import Machine, SimFault
from kb_env.store import Store

pytestmark = needs_nvcc


@pytest.fixture(scope="module")
def ptx(store: Path) -> str:
    return compile_ptx("basic", store)


def counters_of(machine: Machine) -> list[int]:
    out = np.zeros(64, np.int32)
    launch(machine, "counters", [out, 40], block=64)
    return out.tolist()


def test_a_stored_kernel_is_not_compiled_again(ptx, tmp_path, monkeypatch):
    first = counters_of(Machine(ptx, store=Store(tmp_path)))
    assert compiled.stored(Store(tmp_path), ptx, "counters") is not None
    with monkeypatch.context() as patch:

        def never(*_: object) -> None:
            raise AssertionError("compiled again")

        patch.setattr("kb_env.sim.machine.compile_kernel", never)
        patch.setattr("kb_env.sim.machine.parse", never)
        assert counters_of(Machine(ptx, store=Store(tmp_path))) == first == [min(i, 39) for i in range(64)]
        with pytest.raises(AssertionError, match="compiled again"):
            counters_of(Machine(ptx + "\n", store=Store(tmp_path)))  # other PTX, other key


def test_counters_and_faults_are_those_of_a_fresh_compile(ptx, tmp_path):
    x = np.arange(256, dtype=np.int32)
    counts = []
    for _ in range(2):
        machine = Machine(ptx, store=Store(tmp_path))
        counts.append(launch(machine, "scan", [x, np.zeros(256, np.int32), 256], block=256, shared=1024))
    assert counts[0] == counts[1]
    messages = []
    for _ in range(2):
        with pytest.raises(SimFault) as caught:
            launch(Machine(ptx, store=Store(tmp_path)), "counters", [np.zeros(4, np.int32), 40], block=64)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "out of bounds" in messages[0]


def test_a_damaged_record_is_made_again(ptx, tmp_path):
    first = counters_of(Machine(ptx, store=Store(tmp_path)))
    (file,) = tmp_path.glob("entries/*/*/kernel")
    file.write_bytes(file.read_bytes()[:-100])
    assert counters_of(Machine(ptx, store=Store(tmp_path))) == first


def test_writers_that_are_killed_leave_whole_records_or_none(ptx, tmp_path):
    (tmp_path / "basic.ptx").write_text(ptx)
    code = (
        "import sys; from pathlib import Path; from kb_env.sim.machine import Machine; from kb_env.store import Store\n"
        "text = Path(sys.argv[1], 'basic.ptx').read_text()\n"
        "for turn in range(1000):\n"
        "    print(turn, flush=True); Machine(text + ' ' * turn, store=Store(Path(sys.argv[1]))).compile('counters')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        while child.stdout.readline().strip() != b"4":
            pass
        time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    store = Store(tmp_path)
    found = [compiled.stored(store, ptx + " " * turn, "counters") for turn in range(4)]
    assert all(item is not None and item.name == "counters" for item in found)


def tried(action: str, tmp_path: Path) -> bytes:
    """What happens to one Python action in a process that is confined as a run is."""
    code = (
        "import os, socket, sys; from kb_env.sim import confine\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    confine.run(os.getppid(), 5)\n"
        f"    try:\n        {action}\n        os.write(1, b'done')\n"
        "    except OSError as error:\n        os.write(1, type(error).__name__.encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(confine.__file__).parents[2])},
    ).stdout  # fmt: skip


@pytest.mark.parametrize(
    "action",
    [
        "os.open('new', os.O_WRONLY | os.O_CREAT)",
        "os.open('victim', os.O_RDONLY)",
        "os.rename('victim', 'other')",
        "os.symlink('victim', 'link')",
        "os.unlink('victim')",
        "os.mkdir('folder')",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "os.fork()",
        "os.kill(os.getppid(), 9)",
        "os.execv('/bin/true', ['true'])",
        "os.memfd_create('x')",
    ],
)
def test_a_run_can_touch_no_file_and_no_process(action, tmp_path):
    (tmp_path / "victim").write_text("kept")
    assert tried(action, tmp_path) in (b"PermissionError", b"OSError"), action
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_a_run_can_still_compute_and_answer(tmp_path):
    assert tried("import mmap; a = bytearray(1 << 20); mmap.mmap(-1, 4096)[0:1]", tmp_path) == b"done"


def test_the_filter_lists_no_call_that_names_a_file():
    known = {"open", "openat", "rename", "unlink", "socket", "connect", "fork", "clone", "execve", "ptrace"}
    assert all(not known & set(calls) for calls in confine._CALLS.values())
