"""The build store: whole entries or none, whatever happens to writers, disk and files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.store import MANIFEST, Store
from kb_env.types import KbError


def entry_of(store: Store, key: str) -> Path:
    return store.folder / "entries" / key[:2] / key


def test_read_gives_back_what_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.read("abc") is None
    store.write("abc", {"one": b"1", "two": bytes(range(256))})
    assert store.read("abc") == {"one": b"1", "two": bytes(range(256))}
    path = store.path("abc", "one")
    assert path is not None and path.read_bytes() == b"1"
    assert store.path("abc", "three") is None


def test_the_first_writer_wins(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("key", {"a": b"first"})
    store.write("key", {"a": b"second"})
    assert store.read("key") == {"a": b"first"}
    assert store.usage().temporary == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_is_noticed_and_rebuilt(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    content = {"a": b"hello world", "b": b"\0" * 100}
    store.write("key", content)
    victim = entry_of(store, "key") / data.draw(st.sampled_from(["a", "b", MANIFEST]))
    old = victim.read_bytes()
    how = data.draw(st.sampled_from(["flip", "cut", "gone", "folder", "text"]))
    if how == "flip":
        at = data.draw(st.integers(0, len(old) - 1))
        victim.write_bytes(old[:at] + bytes([old[at] ^ 0x04]) + old[at + 1 :])
    elif how == "cut":
        victim.write_bytes(old[: data.draw(st.integers(0, len(old) - 1))])
    else:
        victim.unlink()
        if how == "folder":
            victim.mkdir()
        elif how == "text":
            victim.write_bytes(b'["not", "a", "manifest"]')
    assert store.read("key") is None
    assert store.obtain("key", lambda: content) == content
    assert store.read("key") == content


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KbError, match="no space left") as caught:
        store.write("key", {"a": b"x"})
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert store.read("key") is None
    assert store.usage().temporary == 0
    store.write("key", {"a": b"x"})
    assert store.read("key") == {"a": b"x"}


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KbError, match="--store"):
        Store(tmp_path / "file").write("key", {"a": b"x"})


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "x" * 200])
def test_bad_keys_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(KbError):
        Store(tmp_path).read(key)


@pytest.mark.parametrize("name", ["../a", MANIFEST, "a/b"])
def test_bad_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(KbError):
        Store(tmp_path).write("key", {name: b""})


def test_least_recently_read_go_first(tmp_path: Path) -> None:
    wide = Store(tmp_path, limit=10_000)  # writes shrink a store that is over its bound now and then
    for i in range(4):
        wide.write(f"k{i}", {"a": bytes(1000)})
        os.utime(entry_of(wide, f"k{i}") / MANIFEST, (i, i))
    store = Store(tmp_path, limit=3500)
    assert store.read("k0") is not None  # touched: now the newest
    store.shrink()
    left = [f"k{i}" for i in range(4) if entry_of(store, f"k{i}").exists()]
    assert left == ["k0", "k2", "k3"]
    assert store.usage().nbytes <= 3500


def test_drafts_of_dead_writers_are_cleared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    draft = tmp_path / "temporary" / "1-dead"
    draft.mkdir(parents=True)
    store.shrink()
    assert draft.exists()  # it may belong to a writer that is at work
    os.utime(draft, (1, 1))
    store.shrink()
    assert not draft.exists()


WRITER = """
import sys, itertools
from pathlib import Path
from kb_env.store import Store
store = Store(Path(sys.argv[1]), limit=200_000)
print("ready", flush=True)
for i in itertools.count():
    key = f"k{i % 7}"
    files = {"a": bytes([i % 7]) * 20000, "b": b"b" * (i % 7)}
    found = store.obtain(key, lambda: files)
    assert found == files, "half an entry"
    if i % 5 == 0:
        store._remove(store._entry(key))
"""


def test_killed_writers_leave_whole_entries(tmp_path: Path) -> None:
    """Several writers are killed with SIGKILL in mid-work, again and again; no reader sees half an entry."""
    for _ in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.25)
        for writer in writers:
            assert writer.poll() is None, writer.stderr and writer.stderr.read().decode()
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        store = Store(tmp_path)
        for i in range(7):
            found = store.read(f"k{i}")
            assert found in (None, {"a": bytes([i]) * 20000, "b": b"b" * i})
