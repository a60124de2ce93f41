"""``kb doctor``: what this machine offers, what will be used, and what to do about the rest."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kb_env.backends import explain
from kb_env.build import toolchain
from kb_env.gpu.sanitizer import find_tool
from kb_env.sandbox import describe
from kb_env.store import Store, default_store
from kb_env.types import KbError


@dataclass(frozen=True)
class Args:
    """Say what this machine offers."""

    json: bool = False
    """print one JSON object as the last line"""


@dataclass(frozen=True)
class Finding:
    """One line of the report: ``state`` is ok, weaker or missing; ``remedy`` what to do about it."""

    name: str
    state: str
    fact: str
    remedy: str = ""


def compiler() -> Finding:
    found = shutil.which("g++")
    if found is None:
        return Finding("g++", "missing", "no C++ compiler", "install g++ (apt-get install g++)")
    line = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    return Finding("g++", "ok", line[0] if line else found)


def nvcc() -> Finding:
    try:
        found = toolchain()
    except KbError as error:
        return Finding(
            "nvcc", "missing", str(error), 'pip install "kb-env[nvcc]" or install the CUDA toolkit'
        )
    return Finding("nvcc", "ok", f"{found.version} at {found.nvcc}")


def gpu() -> Finding:
    if not Path("/dev/nvidiactl").exists():
        return Finding(
            "gpu", "missing", "no NVIDIA GPU", "none needed: the simulator models one (--backend sim)"
        )
    line = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return Finding("gpu", "ok", line or "present, but nvidia-smi gave no answer")


def box() -> Finding:
    report = describe()
    state = "weaker" if report.weaker else "ok"
    return Finding("sandbox", state, ", ".join(report.layers), "; ".join(report.weaker))


def profiler() -> Finding:
    found = shutil.which("ncu")
    if found is None:
        return Finding(
            "ncu", "missing", "no Nsight Compute", "profiles are static; install nsight-compute for counters"
        )
    return Finding("ncu", "ok", found)


def sanitizer() -> Finding:
    found = find_tool()
    if found is None:
        return Finding(
            "compute-sanitizer",
            "weaker",
            "not found: new records are searched for races and memory faults by the simulator alone",
            "install the CUDA toolkit's compute-sanitizer",
        )
    return Finding("compute-sanitizer", "ok", found)


def cache() -> Finding:
    used = Store(default_store()).usage()
    return Finding(
        "build cache", "ok", f"{used.entries} entries, {used.nbytes / 1e6:.0f} MB in {used.folder}"
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    compiler,
    nvcc,
    gpu,
    profiler,
    sanitizer,
    box,
    cache,
)


def main(args: Args) -> int:
    findings = [Finding("python", "ok", platform.python_version()), *(check() for check in CHECKS)]
    findings.append(Finding("backend", "ok", explain("auto")))
    table = Table("part", "state", "what was found", "remedy")
    for item in findings:
        table.add_row(item.name, item.state, item.fact, item.remedy)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if args.json:
        print(
            json.dumps(
                {
                    item.name: {"state": item.state, "fact": item.fact, "remedy": item.remedy}
                    for item in findings
                }
            )
        )
    return 0
