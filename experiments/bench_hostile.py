"""Broken and hostile input through a whole environment: each a clear status, and nothing left behind.

    kb bench hostile --only launcher kernel

Plays every case as a step of one episode on the simulator (times are modelled), with an honest step
after each. Prints a line a case: name, status, seconds, first line of the feedback. Exit code 1 if a status is
not an expected one, the honest step fails, a process is left running or a temporary file is left behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from kb_env.edits import format_edit
from kb_env.env import CudaEnv
from kb_env.sim.evaluator import SimEvaluator
from kb_env.task import load_task
from kb_env.types import Edit

TASK = "vector_add"
SIGNATURE = "void launch(const float* a, const float* b, float* c, int n)"
HEAD = "#include <cuda_runtime.h>\n"
KERNEL = "__global__ void k(const float* a, const float* b, float* c, int n) {{ {} }}\n"
ADD = "int i = blockIdx.x * 256 + threadIdx.x; if (i < n) c[i] = a[i] + b[i];"
LAUNCH = SIGNATURE + " {{ {} k<<<(n + 255) / 256, 256>>>(a, b, c, n); }}\n"
#: Clean up after a step may take this long, seconds.
SETTLE = 5.0


def program(kernel: str = ADD, launcher: str = "", before: str = "") -> str:
    """An action that replaces the file by a program with these parts."""
    text = HEAD + before + KERNEL.format(kernel) + LAUNCH.format(launcher)
    return format_edit([Edit("", text)])


HONEST = program()


@dataclass(frozen=True)
class Hostile:
    """An action and the statuses it may end with, joined by ``|``."""

    name: str
    action: str
    expected: str


def _actions() -> Iterator[Hostile]:
    source = load_task(TASK).source
    yield Hostile("truncated block", "<<<<<<< SEARCH\n" + source[:80], "BAD_EDIT")
    yield Hostile("truncated fence", "Here it is:\n```cuda\n" + source[:200], "BAD_EDIT")
    yield Hostile("10 MB action", "x" * 10_000_000, "BAD_EDIT")
    yield Hostile("10 MB of blocks", "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n" * 220_000, "BAD_EDIT")
    yield Hostile("binary garbage", bytes(range(256)).decode("latin-1") * 400, "BAD_EDIT")
    yield Hostile("lone surrogates", "\ud800" * 1000, "BAD_EDIT")
    yield Hostile("empty action", "", "BAD_EDIT")


def _builds() -> Iterator[Hostile]:
    tower = (
        "template <int N, int M> struct F { enum { v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v }; };\n"
    )
    tower += "template <int M> struct F<0, M> { enum { v = 1 }; };\n__device__ int z = F<26, 1>::v;\n"
    failed, slow = "BUILD_FAILED", "BUILD_FAILED|TIMED_OUT"
    yield Hostile("template tower", program(before=tower), slow)
    endless = "constexpr int f(int n) { return n < 1 ? 1 : f(n - 1) + f(n - 2); }\nconstexpr int z = f(60);\n"
    yield Hostile("endless constexpr", program(before=endless), slow)
    yield Hostile("file includes itself", program(before="#include __FILE__\n"), failed)
    macros = "#define A0 1+1\n" + "".join(f"#define A{i + 1} A{i}+A{i}\n" for i in range(40))
    yield Hostile("macro bomb", program(before=f"{macros}int z = A40;\n"), slow)
    for path in ("/dev/zero", "/dev/stdin", "/proc/self/environ", "/etc/shadow", "/root/.ssh/id_rsa", "/"):
        yield Hostile(f"include {path}", program(before=f'#include "{path}"\n'), failed)
    for path in ("/dev/zero", "/etc/passwd"):
        embed = f'const unsigned char z[] = {{\n#embed "{path}"\n}};\n'
        yield Hostile(f"embed {path}", program(before=embed), failed)
    incbin = '__asm__(".data\\n.incbin \\"/etc/passwd\\"\\n.text");\n'
    yield Hostile("assembler reads a file", program(before=incbin), failed)
    flood = "".join(f"#warning {'x' * 200} {i}\n" for i in range(1500))
    yield Hostile("compiler's flood of warnings", program(before=flood), "TIMED|BUILD_FAILED")
    errors = "".join(f"int z{i} = nothing{i};\n" for i in range(4000))
    yield Hostile("compiler's flood of errors", program(before=errors), failed)
    yield Hostile("huge object", program(before="char z[1 << 30] = {1};\n"), "BUILD_FAILED|REFUSED|TIMED_OUT")
    escape = "#error \\033[2J\x0c\u202e\n"
    yield Hostile("terminal codes in errors", program(before=escape), failed)


def _launchers() -> Iterator[Hostile]:
    crashed = "CRASHED|REFUSED"
    unix = "#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
    for name, code, expected in (
        ("exits", "exit(0);", crashed),
        ("exits at once", "_exit(3);", crashed),
        ("aborts", "abort();", crashed),
        ("reads address zero", "*(volatile int*)0;", crashed),
        ("sleeps", "sleep(100000);", "TIMED_OUT"),
        ("loops", "for (volatile int i = 0;; i = i + 1) {}", "TIMED_OUT"),
        ("forks and leaves", "if (fork() == 0) { sleep(100000); }", "TIMED|TIMED_OUT|CRASHED|REFUSED"),
        ("forks without end", "for (;;) fork();", "TIMED_OUT|CRASHED|REFUSED"),
        ("kills its parent", "kill(getppid(), 9); kill(-1, 9);", "TIMED|CRASHED|REFUSED"),
        ("floods stdout", "for (;;) fwrite(&n, 1, 4, stdout);", "TIMED_OUT|CRASHED|REFUSED"),
        ("takes memory", "for (;;) { char* p = (char*)malloc(1 << 24); if (p) p[0] = p[1 << 23] = 1; }",
         "TIMED_OUT|CRASHED|REFUSED"),
        ("fills the disk", 'FILE* f = fopen("fill", "w"); for (;;) fwrite(&n, 1, 4, f);',
         "TIMED_OUT|CRASHED|REFUSED"),
        ("closes all files", "for (int i = 0; i < 1024; ++i) close(i);", "TIMED|CRASHED|REFUSED"),
        ("launches a million times", "for (int i = 0; i < 1000000; ++i) k<<<1, 1>>>(a, b, c, n);",
         "TIMED_OUT|CRASHED|REFUSED"),
    ):  # fmt: skip
        yield Hostile(f"launcher {name}", program(launcher=code, before=unix), expected)


def _kernels() -> Iterator[Hostile]:
    spin = '__shared__ unsigned long long m; if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 2;" :: '
    spin += (
        '"r"((unsigned)__cvta_generic_to_shared(&m))); __syncthreads(); int d = 0; while (!d) asm volatile('
    )
    spin += '"{{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }}" : "=r"(d) : '
    spin += '"r"((unsigned)__cvta_generic_to_shared(&m)) : "memory");'
    deep = "#include <stdio.h>\n__device__ __noinline__ int deep(volatile int n)"
    deep += " { return n ? deep(n + 1) + 1 : 0; }\n"
    spin = spin.replace("{{", "{").replace("}}", "}")
    for name, code, expected in (
        ("loops for ever", "volatile float* y = c; while (y[0] != 1e30f) y[0] = 0;", "TIMED_OUT"),
        ("waits for ever", spin, "TIMED_OUT"),
        ("waits at half a barrier", "if (threadIdx.x < 7) __syncthreads(); c[0] = 1;", "TIMED_OUT|CRASHED|WRONG"),
        ("writes far away", "c[(1ll << 40) + n] = 1;", "CRASHED"),
        ("writes one past the end", "if (threadIdx.x == 0) c[n] = 1;", "CRASHED"),
        ("writes before the start", "c[-1 - (int)threadIdx.x] = 1;", "CRASHED"),
        ("reads address zero", "c[0] = *(volatile float*)8;", "CRASHED"),
        ("misaligns", "*(float2*)(c + 1) = make_float2(1, 2);", "CRASHED"),
        ("traps", "__trap();", "CRASHED"),
        ("recurses without end", "c[0] = deep(n);", "CRASHED|REFUSED|TIMED_OUT"),
        ("prints without end", 'for (int i = 0; i < 100000; ++i) printf("%d\\n", i);',
         "WRONG|REFUSED|TIMED_OUT|CRASHED"),
    ):  # fmt: skip
        yield Hostile(f"kernel {name}", program(code, before=deep), expected)


def cases() -> list[Hostile]:
    """All of them, in the order of a step's stages."""
    return [*_actions(), *_builds(), *_launchers(), *_kernels()]


def leftovers(store: Path, temporary: Path, worker: bool) -> list[str]:
    """Processes that run something of the store, and files in the folder for temporary ones.

    ``worker`` allows for the simulator's own, which waits for the next evaluation.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if worker and "kb_env.sim.worker" in words:
            continue
        if str(store) in words or str(temporary) in words:
            found.append(f"process {entry.name}: {words[:80]}")
    return found + [f"file {path.name}" for path in temporary.iterdir() if not worker]


def settled(store: Path, temporary: Path, worker: bool = False) -> list[str]:
    """What is still left over after a moment."""
    deadline = time.monotonic() + SETTLE
    while (found := leftovers(store, temporary, worker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def play(env: CudaEnv, case: Hostile) -> str | None:
    """One case and an honest step after it. Returns what is wrong, None if nothing is."""
    env.reset(seed=0, options={"task": TASK})
    begun = time.monotonic()
    observation, reward, terminated, truncated, _ = env.step(case.action)
    step = env.episode.steps[-1]
    seconds = time.monotonic() - begun
    first = observation["feedback"].split("\n", 1)[0]
    print(f"{case.name:<32} {step.status.value:<13} {seconds:6.1f} s  {first[:110]}", flush=True)
    if step.status.value not in case.expected.split("|"):
        return f"{case.name}: {step.status.value}, not {case.expected}: {observation['feedback'][:300]}"
    if terminated or truncated or observation not in env.observation_space:
        return f"{case.name}: the episode ended ({env.episode.ended}) or the observation is none"
    if step.status.value != "TIMED" and reward >= 0:
        return f"{case.name}: reward {reward}"
    env.step(HONEST)
    after = env.episode.steps[-1]
    return None if after.status.value == "TIMED" else f"{case.name}: the next step: {after.feedback[:300]}"


def sweep(chosen: list[Hostile], folder: Path) -> list[str]:
    """Plays cases in a folder of their own; returns what went wrong."""
    store, temporary = folder / "store", folder / "temporary"
    temporary.mkdir(parents=True)
    before, tempfile.tempdir = tempfile.tempdir, str(temporary)
    wrong = []
    try:
        with SimEvaluator(store=store) as evaluator:
            env = CudaEnv(TASK, evaluator=evaluator, max_steps=1000)
            for case in chosen:
                found = play(env, case)
                wrong += [found] if found else []
                wrong += [f"{case.name}: left {item}" for item in settled(store, temporary, worker=True)]
        wrong += [f"at the end: left {item}" for item in settled(store, temporary)]
    finally:
        tempfile.tempdir = before
    return wrong


@dataclass(frozen=True)
class Args:
    """Broken and hostile input through a whole environment, on the simulator."""

    only: tuple[str, ...] = ()
    """cases whose name holds one of these words (default: all)"""


def main(args: Args) -> int:
    chosen = [case for case in cases() if not args.only or any(word in case.name for word in args.only)]
    with tempfile.TemporaryDirectory() as name:
        wrong = sweep(chosen, Path(name))
    print(f"{len(chosen)} cases, {len(wrong)} wrong")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
