"""Compiles a candidate: one nvcc call in a box, with our flags only, cached by all that decides it.

The one call yields the host object (for the recorder), the cubin (what runs) and the PTX (what the
simulator reads), so that names of internal kernels agree in all three.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from kb_env.cubin import KernelFacts, read_cubin
from kb_env.records import RecordError, pack, unpack
from kb_env.sandbox import Box, run_boxed
from kb_env.store import Store
from kb_env.types import BuildResult, KbError, Program, Status, digest

#: Raised whenever what a build holds or means changes.
BUILD_SCHEMA = 2
#: Whole build, wall time. An honest kernel takes 1 to 3 seconds; heavy templates 15.
BUILD_SECONDS = 60.0
SOURCE_LIMIT = 1 << 20
LOG_LIMIT = 16384
FLAGS = ("-std=c++17", "-O3", "-rdc=false", "-cudart", "none", "-lineinfo", "-Xptxas", "-v")
_FILES = ("kernel.o", "kernel.ptx", "kernel.cubin")


@dataclass(frozen=True)
class Toolchain:
    """The compiler in use. ``home`` holds its headers, libraries and tools."""

    nvcc: str
    home: str
    version: str
    host: str


@dataclass(frozen=True)
class Built:
    """A build with its outputs; ``fault`` is the status it ended with, None if it succeeded."""

    result: BuildResult
    key: str
    fault: Status | None = None
    image: bytes = b""
    ptx: str = ""
    host_object: bytes = b""
    kernels: tuple[KernelFacts, ...] = ()
    undefined: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Facts:
    """What is stored beside a build's outputs."""

    result: BuildResult
    fault: str | None
    kernels: tuple[KernelFacts, ...]
    undefined: tuple[str, ...]


def architecture_of(major: int, minor: int) -> str:
    """``sm_80``, ``sm_90a``: architecture-specific features from Hopper on."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _candidates() -> list[Path]:
    site = Path(sysconfig.get_paths()["purelib"])
    found = [Path(p) for p in (shutil.which("nvcc"),) if p]
    return [*found, Path("/usr/local/cuda/bin/nvcc"), *sorted(site.glob("nvidia/cu*/bin/nvcc"), reverse=True)]


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The CUDA compiler of this machine.

    Raises:
        KbError: if there is none, or no C++ compiler for its host code.
    """
    host = shutil.which("g++")
    if host is None:
        raise KbError("no C++ compiler: install g++ (Debian: apt-get install g++)")
    for path in _candidates():
        if not path.exists():
            continue
        shown = subprocess.run(
            [str(path), "--dryrun", "-c", "x.cu"], capture_output=True, text=True, check=False
        )
        top = re.search(r"^#\$ TOP=(.*)$", shown.stderr, re.MULTILINE)
        said = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"V(\d+\.\d+\.\d+)", said)
        if top and version:
            home = Path(top.group(1)).resolve()
            gcc = subprocess.run(
                [host, "-dumpfullversion"], capture_output=True, text=True, check=False
            ).stdout
            return Toolchain(str(home / "bin" / "nvcc"), str(home), version.group(1), f"{host} {gcc.strip()}")
    raise KbError('no CUDA compiler: pip install "kb-env[nvcc]" brings nvcc (no GPU needed)')


def build_key(program: Program, architecture: str) -> str:
    """Everything that decides a build's outputs."""
    tools = toolchain()
    parts = (str(BUILD_SCHEMA), program.text, architecture, " ".join(FLAGS), tools.version, tools.host)
    return "build-" + digest("\0".join(parts))


def build(program: Program, architecture: str, store: Path) -> Built:
    """Compile a program for one architecture, such as ``sm_90a``; from the store if it was built before.

    What is wrong with the program is in the result; builds that ran out of time are not stored.

    Raises:
        KbError: if there is no compiler, or the store cannot be written.
    """
    if not re.fullmatch(r"sm_\d{2,3}[af]?", architecture):
        raise KbError(f"{architecture!r} is no GPU architecture: give one like sm_80 or sm_90a")
    if len(program.text) > SOURCE_LIMIT:
        return _failed("", f"the source has {len(program.text)} characters; {SOURCE_LIMIT} are allowed")
    key = build_key(program, architecture)
    place = Store(store)
    files = place.read(key)
    if files is not None:
        found = _from_files(key, files)
        if found is not None:
            return replace(found, result=replace(found.result, cached=True))
    built = _compile(program, architecture, key)
    if built.fault is not Status.TIMED_OUT:
        place.write(key, _to_files(built))
    return built


def _failed(key: str, log: str, status: Status = Status.BUILD_FAILED, seconds: float = 0.0) -> Built:
    return Built(BuildResult(False, log[:LOG_LIMIT], seconds), key, status)


def _compile(program: Program, architecture: str, key: str) -> Built:
    tools = toolchain()
    number = architecture.removeprefix("sm_")
    command = [
        tools.nvcc, *FLAGS, "-ccbin", tools.host.split()[0],
        "-gencode", f"arch=compute_{number},code=[sm_{number},compute_{number}]",
        "--keep", "--keep-dir", ".", "-c", "kernel.cu", "-o", "kernel.o",
    ]  # fmt: skip
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kb-build-") as folder:
        scratch = Path(folder)
        (scratch / "kernel.cu").write_text(program.text, encoding="utf-8", errors="surrogatepass")
        box = Box(seconds=BUILD_SECONDS, scratch=scratch, readable=(Path(tools.home),))
        outcome = run_boxed(command, box)
        seconds = time.monotonic() - started
        log = _clean_log(outcome.stdout + outcome.stderr)
        if outcome.timed_out:
            return _failed(key, f"the build took more than {BUILD_SECONDS:.0f} s", Status.TIMED_OUT, seconds)
        if outcome.exit != 0:
            return _failed(key, log or f"nvcc ended with {outcome.exit or outcome.signal}", seconds=seconds)
        outputs = {
            "kernel.o": read_output(scratch / "kernel.o"),
            "kernel.ptx": read_output(scratch / "kernel.ptx"),
            "kernel.cubin": read_output(scratch / f"kernel.{architecture}.cubin"),
        }
    if not all(outputs.values()):
        return _failed(key, "the program has no device code", seconds=seconds)
    raw = (outcome.stdout + outcome.stderr).decode("utf-8", "replace")
    try:
        return _finish(key, outputs, log, raw, seconds)
    except KbError as error:  # its text decides what is in the files: that they cannot be read is its fault
        return _failed(key, str(error), seconds=seconds)


def _finish(key: str, outputs: dict[str, bytes], log: str, raw: str, seconds: float) -> Built:
    cubin = read_cubin(outputs["kernel.cubin"])
    kernels = cubin.kernels()
    result = BuildResult(
        True,
        log,
        seconds,
        key,
        max((k.registers for k in kernels), default=None),
        max((k.shared_bytes for k in kernels), default=None),
        max(_spills(raw), default=None),
    )
    ptx = outputs["kernel.ptx"].decode("utf-8", "replace")
    return Built(
        result, key, None, outputs["kernel.cubin"], ptx, outputs["kernel.o"], kernels, cubin.undefined
    )


def read_output(path: Path, limit: int = 256 << 20) -> bytes:
    """A file the compiler left: a regular one of bounded size, not where a link points."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    return data if len(data) <= limit else b""


def _clean_log(raw: bytes) -> str:
    """The compiler's words without ptxas's statistics, which are in the result's fields."""
    lines = raw.decode("utf-8", "replace").splitlines()
    kept = [line for line in lines if not re.match(r"ptxas info |    \d+ bytes stack frame|Remark: ", line)]
    return "\n".join(kept).strip()[:LOG_LIMIT]


def _spills(raw: str) -> list[int]:
    found = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", raw)
    return [int(stores) + int(loads) for stores, loads in found]


def _to_files(built: Built) -> dict[str, bytes]:
    facts = _Facts(built.result, built.fault and built.fault.value, built.kernels, built.undefined)
    files = {"facts": pack(facts)}
    if built.fault is None:
        files |= {
            "kernel.o": built.host_object,
            "kernel.ptx": built.ptx.encode(),
            "kernel.cubin": built.image,
        }
    return files


def _from_files(key: str, files: dict[str, bytes]) -> Built | None:
    try:
        facts = unpack(_Facts, files["facts"])
        if facts.fault is not None:
            return Built(facts.result, key, Status(facts.fault))
        host, ptx, image = (files[name] for name in _FILES)
    except (RecordError, KeyError, ValueError):
        return None  # written by another version: build again
    return Built(facts.result, key, None, image, ptx.decode(), host, facts.kernels, facts.undefined)
