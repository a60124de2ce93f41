"""``kb doctor``: what this machine offers, what will be used, and what to do about the rest."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kb_env.backends import explain
from kb_env.build import find_nvcc
from kb_env.sandbox import describe
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
        return Finding("nvcc", "ok", str(find_nvcc()))
    except KbError as error:
        return Finding(
            "nvcc", "missing", str(error), 'pip install "kb-env[nvcc]" or install the CUDA toolkit'
        )


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
    return Finding(
        "sandbox", "ok" if not report.weaker else "weaker", report.summary, "; ".join(report.weaker)
    )


def profiler() -> Finding:
    found = shutil.which("ncu")
    if found is None:
        return Finding(
            "ncu", "missing", "no Nsight Compute", "profiles are static; install nsight-compute for counters"
        )
    return Finding("ncu", "ok", found)


CHECKS: tuple[Callable[[], Finding], ...] = (compiler, nvcc, gpu, profiler, box)


def main(args: Args) -> int:
    findings = [Finding("python", "ok", platform.python_version()), *(check() for check in CHECKS)]
    findings.append(Finding("backend", "ok", explain("auto")))
    table = Table("part", "state", "what was found", "remedy")
    for item in findings:
        table.add_row(item.name, item.state, item.fact, item.remedy)
    Console(soft_wrap=True).print(table)
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
