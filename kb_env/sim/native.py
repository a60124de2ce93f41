"""The runtime library in C++ (native/*.cpp): built once by g++, loaded with ctypes; and its structures."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from kb_env.types import KbError

SOURCES = Path(__file__).parent / "native"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
]
SLOTS = 4096
#: Bins of reuse distances, and entries of the table of atomics, as in native/runtime.h.
REUSES, HOT_WORDS = 9, 1 << 16

u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class Slot(ctypes.Structure):
    _fields_ = [
        ("host", pointer),
        ("nbytes", u64),
        ("read", pointer),
        ("written", pointer),
        ("writable", u64),
        ("defined", pointer),
        ("stamps", pointer),
    ]


class SiteCount(ctypes.Structure):
    _fields_ = [("requests", u64), ("sectors", u64), ("bytes", u64), ("conflicts", u64), ("cold", u64)]


class FaultRecord(ctypes.Structure):
    _fields_ = [
        ("kind", u32), ("site", u32), ("lane", u32), ("warp", u32), ("block", u32 * 3), ("pad", u32),
        ("address", u64), ("width", u64),
    ]  # fmt: skip


class FindingRecord(ctypes.Structure):
    _fields_ = [
        ("kind", u32), ("site", u32), ("block", u32 * 3), ("thread", u32), ("count", u64), ("other_site", u32),
        ("other_block", u32), ("other_thread", u32), ("width", u32), ("address", u64),
    ]  # fmt: skip


class Run(ctypes.Structure):
    """The head of struct Run in native/runtime.h; the jump buffer at its end is the library's own."""

    _fields_ = [
        ("slots", Slot * SLOTS), ("kernel", pointer), ("params", pointer), ("param_bytes", u64),
        ("block_counts", pointer), ("sites", pointer), ("register_bytes", u64), ("local_bytes", u64),
        ("grid", u32 * 3), ("block", u32 * 3), ("cluster", u32 * 3), ("shared_static", u32), ("shared_bytes", u32),
        ("slots_used", u32), ("zero_registers", u32), ("budget", u64), ("used", u64), ("divergent_branches", u64),
        ("barriers", u64), ("max_warp", u64), ("picks", pointer), ("pick_count", u64), ("fault", FaultRecord),
        ("findings", pointer), ("finding_count", u32), ("finding_room", u32), ("text", pointer), ("text_used", u64),
        ("text_room", u64), ("lane_accesses", u64), ("hot", pointer), ("hot_most", u64), ("first_sectors", u64),
        ("reuse", u64 * REUSES), ("between", u64 * REUSES),
        ("slice", u64), ("rounds", u64), ("waves", u64), ("sanitize", u64), ("watch", pointer),
        ("escape", ctypes.c_uint8 * 1024),
    ]  # fmt: skip


@lru_cache(maxsize=1)
def host() -> tuple[str, str]:
    """CPU name and feature string for code generation, with 512-bit vectors where there are any."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        features["prefer-256-bit"] = False
    return llvm.get_host_cpu_name(), features.flatten()


def default_cache() -> Path:
    return Path.home() / ".cache" / "kb-env"


@lru_cache(maxsize=4)
def load(cache: Path) -> ctypes.CDLL:
    """The runtime, built into ``cache`` if it is not there.

    Raises:
        KbError: if g++ is missing or fails.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    content = b"".join(path.read_bytes() for path in [*sources, SOURCES / "runtime.h"])
    key = hashlib.sha256(content + repr((FLAGS, host(), platform.machine())).encode()).hexdigest()[:24]
    folder = cache / "sim"
    library = folder / f"runtime-{key}.so"
    if not library.exists():
        _compile(sources, library)
    runtime = ctypes.CDLL(str(library))
    runtime.kb_run.argtypes = [pointer, u32]
    runtime.kb_run.restype = u32
    size = runtime.kb_size_of_run()
    if size > ctypes.sizeof(Run):
        raise KbError(
            f"simulator runtime: struct Run has {size} bytes, expected at most {ctypes.sizeof(Run)}"
        )
    return runtime


def _compile(sources: list[Path], library: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise KbError("the simulator needs g++ to build its runtime once: install g++")
    library.parent.mkdir(parents=True, exist_ok=True)
    native = ["-march=native"] if platform.machine() == "x86_64" else ["-mcpu=native"]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        out = Path(scratch) / "runtime.so"
        command = [compiler, *FLAGS, *native, *map(str, sources), "-o", str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise KbError(f"g++ could not build the simulator's runtime: {done.stderr.strip()[:500]}")
        with out.open("rb") as handle:
            os.fsync(handle.fileno())
        out.replace(library)
