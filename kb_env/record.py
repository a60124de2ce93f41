"""Records launch plans: runs a candidate's launcher in a box against a CUDA runtime without a GPU.

The launcher runs twice for each case, with two different sets of fake device addresses and two
different fills of fresh host memory. What differs between the two records must be an address in a
known buffer, at the same place; it becomes a relocation. Anything else that differs is refused,
since a plan may depend on the sizes alone. The process that writes a record ran candidate code, so
a record is parsed as hostile bytes.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kb_env.build import Built, read_output, toolchain
from kb_env.cubin import read_cubin
from kb_env.device_answers import DeviceAnswers
from kb_env.plan import PLAN_SCHEMA, LaunchPlan
from kb_env.record_frames import CaseRecord, RecordFault, merge, parse
from kb_env.records import RecordError, pack, unpack
from kb_env.sandbox import Box, Outcome, run_boxed
from kb_env.store import Store
from kb_env.types import Argument, Case, Fault, KbError, Status, Task, digest

_STUB = Path(__file__).parent / "stub"
#: Raised whenever what a recording means changes.
RECORD_SCHEMA = 3
RECORD_SECONDS = 10.0
RECORD_BYTES = 64 << 20
#: Larger recordings (megabytes of uploads) are made again each time.
STORED_LIMIT = 16 << 20

#: Fake addresses of buffer k: first + k * stride. The second layout runs downwards with another
#: spacing, so that order, differences and low halves of addresses all differ; all are 2 MiB aligned.
LAYOUTS = (
    (0x1000_0000_0000 + (1 << 35), 1 << 36, 0x00),
    (0x3FF0_0000_0000 + (1 << 35), -((1 << 36) + (7 << 21)), 0xA5),
)


@dataclass(frozen=True)
class Recording:
    """Plans by case name, or the fault that ended recording."""

    plans: dict[str, LaunchPlan] = field(default_factory=dict)
    fault: Fault | None = None


@dataclass(frozen=True)
class _Stored:
    """A recording as the store keeps it."""

    plans: tuple[LaunchPlan, ...]
    fault: Fault | None


def record(
    task: Task, built: Built, answers: DeviceAnswers, cases: tuple[Case, ...], store: Path
) -> Recording:
    """Link the built program with the recorder and run its launcher for each case.

    Recordings are kept in the store under all that decides them; crashes and timeouts are not.
    """
    key = record_key(task, built, answers, cases)
    place = Store(store)
    files = place.read(key)
    if files is not None:
        try:
            found = unpack(_Stored, files["plans"])
            return Recording({plan.case: plan for plan in found.plans}, found.fault)
        except (RecordError, KeyError):
            pass  # written by another version: record again
    recording = _record(task, built, answers, cases, store)
    if recording.fault is None or recording.fault.status in (Status.REFUSED, Status.BUILD_FAILED):
        data = pack(_Stored(tuple(recording.plans.values()), recording.fault))
        if len(data) <= STORED_LIMIT:
            place.write(key, {"plans": data})
    return recording


def record_key(task: Task, built: Built, answers: DeviceAnswers, cases: tuple[Case, ...]) -> str:
    """Hash of everything that decides a recording."""
    asked = [_request(task, built, answers, cases, layout) for layout in LAYOUTS]
    names = "\0".join(case.name for case in cases)
    sources = [path.read_bytes() for path in sorted(_STUB.iterdir()) if path.suffix in (".cpp", ".h")]
    version = f"{RECORD_SCHEMA} {PLAN_SCHEMA} {built.key} {_entry_source(task)} {names}"
    return "plan-" + digest(b"\0".join((version.encode(), *asked, *sources)))


def _record(
    task: Task, built: Built, answers: DeviceAnswers, cases: tuple[Case, ...], store: Path
) -> Recording:
    linked = _link(task, built, store)
    if isinstance(linked, Fault):
        return Recording(fault=linked)
    with tempfile.TemporaryDirectory(prefix="kb-record-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        program = folder / "recorder"
        program.write_bytes(linked)
        program.chmod(0o755)
        try:
            plans = _run(task, built, answers, cases, folder)
        except RecordFault as error:
            return Recording(fault=Fault(error.status, "record", str(error)))
    return Recording(plans)


def _run(
    task: Task, built: Built, answers: DeviceAnswers, cases: tuple[Case, ...], folder: Path
) -> dict[str, LaunchPlan]:
    box = Box(
        seconds=RECORD_SECONDS,
        memory_bytes=1 << 30,
        processes=8,
        output_bytes=1 << 16,
        record_bytes=RECORD_BYTES,
        readable=(folder,),
    )

    def one(layout: tuple[int, int, int]) -> Outcome:
        return run_boxed([str(folder / "recorder")], box, _request(task, built, answers, cases, layout))

    with ThreadPoolExecutor(len(LAYOUTS)) as pool:
        outcomes = list(pool.map(one, LAYOUTS))
    records = [_records(outcome, len(cases)) for outcome in outcomes]
    plans = {}
    for i, case in enumerate(cases):
        sizes = [a.nbytes(case.sizes) for a in task.arguments if a.kind != "scalar"]
        names = [a.name for a in task.arguments if a.kind != "scalar"]
        arguments = tuple(zip(names, sizes, strict=True))
        plan = merge(case.name, arguments, (records[0][i], records[1][i]), LAYOUTS)
        _check_kernels(plan, built)
        plans[case.name] = plan
    return plans


def _check_kernels(plan: LaunchPlan, built: Built) -> None:
    """A record can be forged: it may launch this program's kernels alone, with parameters of their sizes."""
    known = {kernel.name: kernel.parameters for kernel in built.kernels}
    for launch in plan.launches:
        sizes = tuple(len(data) for data in launch.parameters)
        if known.get(launch.kernel) != sizes:
            message = f"the record launches {launch.kernel} with parameters of {sizes} bytes: no such kernel"
            raise RecordFault(Status.REFUSED, message)


def _records(outcome: Outcome, cases: int) -> list[CaseRecord]:
    tail = outcome.stderr[-400:].decode("utf-8", "replace").strip()
    if outcome.timed_out:
        raise RecordFault(Status.TIMED_OUT, f"the launcher ran for more than {RECORD_SECONDS:.0f} s")
    found = parse(outcome.record, cases)
    if len(found) < cases:
        how = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit}"
        raise RecordFault(
            Status.CRASHED, f"the program ended with {how} before its launcher was done. {tail}".strip()
        )
    return found


def _request(
    task: Task, built: Built, answers: DeviceAnswers, cases: tuple[Case, ...], layout: tuple[int, int, int]
) -> bytes:
    first, stride, fill = layout
    out = [
        struct.pack(
            "<IQqQQQ", 0x3152424B, first, stride, task.workspace_bytes, RECORD_BYTES // len(cases), fill
        )
    ]

    def text(value: str) -> None:
        data = value.encode()
        out.append(struct.pack("<I", len(data)) + data)

    text(answers.name)
    out.append(struct.pack("<QI", answers.global_bytes, len(answers.attributes)))
    out += [struct.pack("<ii", *item) for item in answers.attributes]
    out.append(struct.pack("<I", len(built.kernels)))
    for kernel in built.kernels:
        text(kernel.name)
        out.append(struct.pack(f"<I{len(kernel.parameters)}I", len(kernel.parameters), *kernel.parameters))
        facts = (kernel.registers, kernel.shared_bytes, kernel.local_bytes, kernel.max_threads)
        out.append(struct.pack("<iiii", *facts))
    out.append(struct.pack("<I", len(cases)))
    for case in cases:
        out.append(struct.pack("<I", len(task.arguments)))
        for argument in task.arguments:
            out.append(_argument(argument, case))
    return b"".join(out)


_SCALARS = {
    "float64": "<d", "float32": "<f", "float16": "<e", "int64": "<q", "int32": "<i", "int16": "<h",
    "int8": "<b", "uint8": "<B", "bool": "<?",
}  # fmt: skip


def _argument(argument: Argument, case: Case) -> bytes:
    if argument.kind != "scalar":
        return struct.pack("<BQ", 1, argument.nbytes(case.sizes))
    form = _SCALARS.get(argument.dtype)
    if form is None:
        raise KbError(
            f"a scalar argument cannot have the dtype {argument.dtype}: use float32 for {argument.name}"
        )
    value = argument.scalar(case.sizes)
    try:
        data = struct.pack(form, value if form in ("<d", "<f", "<e") else int(value))
    except struct.error as error:
        raise KbError(
            f"{argument.name} = {value} does not fit {argument.dtype} in case {case.name}"
        ) from error
    return struct.pack("<B8s", 0, data)


def _entry_source(task: Task) -> str:
    """C++ that calls the entry of this signature with the recorder's arguments.

    Both linkages are declared weak: the candidate defines one of them.
    """
    values = []
    for i, argument in enumerate(task.arguments):
        kind = argument.cpp.removesuffix(f" {argument.name}")
        values.append(f"as<{kind}>({i})")
    return f"""#include <stdint.h>
struct __half; struct __nv_bfloat16;
{task.signature} __attribute__((weak));
namespace kb_c_linkage {{ extern "C" {task.signature} __attribute__((weak)); }}
extern "C" uint64_t kb_argument(int index);
template <class T> static T as(int i) {{
    uint64_t bits = kb_argument(i);
    T out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
}}
extern "C" bool kb_entry_defined() {{ return {task.entry} || kb_c_linkage::{task.entry}; }}
extern "C" void kb_call_entry() {{
    ({task.entry} ? {task.entry} : kb_c_linkage::{task.entry})({", ".join(values)});
}}
"""


def _compile_host(name: str, source: str, place: Store, *parts: str) -> bytes:
    """Object file of one of our own sources, from the store."""
    tools = toolchain()
    key = "host-" + digest("\0".join((name, source, tools.version, tools.host, *parts)))

    def make() -> dict[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="kb-stub-") as folder:
            (Path(folder) / name).write_text(source)
            for header in _STUB.glob("*.h"):
                (Path(folder) / header.name).write_bytes(header.read_bytes())
            command = [
                tools.host.split()[0], "-std=c++17", "-O1", "-fno-pie", "-isystem", f"{tools.home}/include",
                "-c", name, "-o", "out.o",
            ]  # fmt: skip
            outcome = run_boxed(command, Box(scratch=Path(folder), readable=(Path(tools.home),)))
            if outcome.exit != 0:
                raise KbError(
                    f"cannot compile the recorder with {tools.host}: {outcome.stderr.decode()[:300]}"
                )
            return {"out.o": (Path(folder) / "out.o").read_bytes()}

    return place.obtain(key, make)["out.o"]


def _link(task: Task, built: Built, store: Path) -> bytes | Fault:
    """The recorder program; or a fault that names what the candidate lacks or asks for."""
    place = Store(store)
    headers = "".join(path.read_text() for path in sorted(_STUB.glob("*.h")))
    objects = {
        "entry.o": _compile_host("entry.cpp", _entry_source(task), place),
        "kernel.o": built.host_object,
    }
    for name in ("recorder", "runtime", "clock"):
        source = (_STUB / f"{name}.cpp").read_text()
        objects[f"{name}.o"] = _compile_host(f"{name}.cpp", source, place, headers)
    try:
        missing = _missing_entry(task, objects["entry.o"], built.host_object)
    except KbError as error:
        return Fault(Status.BUILD_FAILED, "build", f"its host object cannot be read: {error}")
    if missing is not None:
        return Fault(Status.BUILD_FAILED, "build", missing)
    with tempfile.TemporaryDirectory(prefix="kb-link-") as name:
        folder = Path(name)
        for file, data in objects.items():
            (folder / file).write_bytes(data)
        command = [toolchain().host.split()[0], "-no-pie", "-o", "recorder", *objects]
        outcome = run_boxed(command, Box(scratch=folder))
        if outcome.exit == 0:
            return read_output(folder / "recorder")
    return link_fault(outcome.stderr.decode("utf-8", "replace"))


def _missing_entry(task: Task, entry: bytes, host: bytes) -> str | None:
    """Message if the host object does not define the task's entry, in C++ or C linkage."""
    wanted = {name for name in read_cubin(entry).undefined if task.entry in name}
    defined = {s.name for s in read_cubin(host).symbols if s.section != 0}
    if wanted & defined:
        return None
    message = f"the program must define `{task.signature}` at file scope"
    similar = [name for name in sorted(defined) if name.startswith(f"_Z{len(task.entry)}{task.entry}")]
    shown = _demangle(similar[:3])
    return f"{message}; it defines `{'`, `'.join(shown)}`" if shown else message


def _demangle(names: list[str]) -> list[str]:
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return names
    done = subprocess.run([tool, *names], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[: len(names)] if done.returncode == 0 else names


def link_fault(log: str) -> Fault:
    """What a failed link means: calls outside what a plan can express, or undefined functions."""
    undefined = sorted(set(re.findall(r"undefined reference to [`']([^'`]+)'", log)))
    foreign = [name for name in undefined if re.match(r"_*(cu[A-Zbdfrs]|cuda|nvrtc|nvml|nccl|nv[A-Z])", name)]
    if foreign:
        return Fault(
            Status.REFUSED,
            "record",
            f"the launcher calls {', '.join(foreign[:5])}, which a launch plan cannot express",
        )
    if undefined:
        return Fault(Status.BUILD_FAILED, "build", f"undefined: {', '.join(undefined[:5])}")
    twice = re.search(r"multiple definition of [`']([^'`]+)'", log)
    if twice:
        return Fault(Status.BUILD_FAILED, "build", f"the program must not define {twice.group(1)}")
    return Fault(Status.BUILD_FAILED, "build", f"the program does not link: {log[-300:]}")
