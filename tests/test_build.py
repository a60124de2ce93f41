"""Building candidates: outputs, faults as data, the cache, and the key of what was built."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kb_env import build as build_module
from kb_env.build import Built, architecture_of, build, toolchain
from kb_env.cubin import read_cubin
from kb_env.evaluators import Prepared
from kb_env.prepare import prepare
from kb_env.sandbox import Box, run_boxed
from kb_env.task import load_task
from kb_env.types import KbError, Program, Status

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

TASK = load_task("softmax")
CASES = TASK.check[:1]


def built(text: str, store: Path, architecture: str = "sm_90a") -> Built:
    return build(Program("softmax", text), architecture, store)


def prepared(text: str, store: Path) -> Prepared:
    return prepare(TASK, Program("softmax", text), "sm_90a", store, CASES)


def test_one_call_gives_image_ptx_and_host_object(store: Path) -> None:
    first = built(TASK.source, store)
    assert first.fault is None and first.result.ok
    assert first.image[:4] == first.host_object[:4] == b"\x7fELF"
    assert ".target sm_90a" in first.ptx
    (kernel,) = first.kernels
    assert f".entry {kernel.name}(" in first.ptx
    assert kernel.parameters == (8, 8, 4) and kernel.shared_bytes == 1024
    assert 10 < kernel.registers <= 64 and kernel.registers == first.result.registers
    assert (first.result.shared_bytes, first.result.spills) == (1024, 0)
    assert re.search(r"\.loc\s+1 ", first.ptx)  # lines, for the simulator's feedback


def test_the_second_time_it_comes_from_the_store(store: Path) -> None:
    first, second = built(TASK.source, store), built(TASK.source, store)
    assert second.result.cached
    assert (second.image, second.ptx, second.host_object) == (first.image, first.ptx, first.host_object)
    assert second.kernels == first.kernels


def test_the_key_ignores_comments_and_layout(store: Path) -> None:
    source = TASK.source.replace(
        "__global__ void softmax_rows", "namespace { __global__ void softmax_rows", 1
    )
    source = source.replace("\nvoid launch", "}\nvoid launch", 1)
    comment = "// a comment\n\n\n/* and another */ " + source.replace("float largest", "float   largest\n", 1)
    other = source.replace("BLOCK = 256", "BLOCK = 128")
    one, two, three = (prepared(text, store) for text in (source, comment, other))
    assert one.fault is None and two.fault is None and three.fault is None
    assert one.image != two.image  # line tables and hashed names differ
    assert one.key == two.key != three.key


def test_the_key_sees_the_launch(store: Path) -> None:
    dynamic = TASK.source.replace("<<<rows, BLOCK>>>", "<<<rows, BLOCK, 64>>>")
    assert prepared(dynamic, store).key != prepared(TASK.source, store).key


def test_spills_and_registers_are_read(store: Path) -> None:
    body = "\n".join(f"    float v{i} = x[i0 * {i + 3}];" for i in range(64))
    uses = " + ".join(f"v{i} * v{(i * 7) % 64}" for i in range(64))
    text = f"__global__ void __launch_bounds__(1024, 2) k(const float* x, float* y, int i0) {{\n{body}\n"
    text += f"    __syncthreads();\n    y[0] = {uses};\n}}\n"
    text += "void launch(const float* x, float* y, int rows, int cols) { k<<<1, 1024>>>(x, y, rows); }\n"
    result = built(text, store).result
    assert result.ok and result.registers == 32
    assert result.spills is not None and result.spills > 0


HEAD = "#include <cuda_runtime.h>\n"
LAUNCH = "void launch(const float* x, float* y, int rows, int cols) { }\n"
FAULTS = [
    ("__global__ void k() { not code }\n" + LAUNCH, Status.BUILD_FAILED, "error"),
    ('#include "/etc/passwd"\n' + LAUNCH, Status.BUILD_FAILED, "/etc/passwd"),
    ("#include </proc/self/environ>\n" + LAUNCH, Status.BUILD_FAILED, "environ"),
    ("#include <../../../../etc/passwd>\n" + LAUNCH, Status.BUILD_FAILED, "passwd"),
    (
        '__asm__(".section .data\\nstolen: .incbin \\"/etc/passwd\\"");\n__global__ void k() {}\n' + LAUNCH,
        Status.BUILD_FAILED,
        "passwd",
    ),
    ("int nothing;\n", Status.BUILD_FAILED, "must define `void launch(const float* x"),
    (
        "__global__ void k(float* y) { y[0] = 1; }\n"
        "void launch(float* x, float* y, int rows) { k<<<1, 1>>>(y); }\n",
        Status.BUILD_FAILED,
        "it defines `launch(float*, float*, int)`",
    ),
    (
        "int main() { return 0; }\n__global__ void k(float* y) { y[0] = 1; }\n"
        "void launch(const float* x, float* y, int rows, int cols) { k<<<1, 1>>>(y); }\n",
        Status.BUILD_FAILED,
        "must not define main",
    ),
    (
        HEAD + 'extern "C" int cublasCreate_v2(void*);\nvoid launch(const float* x, float* y, int r, int c) '
        "{ cublasCreate_v2(0); cudaGraphLaunch(0, 0); }\n__global__ void k() {}\n",
        Status.REFUSED,
        "cublasCreate_v2, cudaGraphLaunch",
    ),
    (
        "void helper();\n__global__ void k() {}\n"
        "void launch(const float* x, float* y, int r, int c) { helper(); k<<<1, 1>>>(); }\n",
        Status.BUILD_FAILED,
        "helper()",
    ),
    (
        "#include <cstdlib>\n__global__ void k(float** y) { *y = (float*)malloc(4); }\n"
        "void launch(const float* x, float* y, int r, int c) { k<<<1, 1>>>((float**)y); }\n",
        Status.REFUSED,
        "malloc",
    ),
    (
        "__global__ void a() {}\n__global__ void k() { a<<<1, 1>>>(); }\n"
        "void launch(const float* x, float* y, int r, int c) { k<<<1, 1>>>(); }\n",
        Status.BUILD_FAILED,
        "separate compilation",
    ),
    (
        "#include <cstdlib>\nstruct Early { Early() { exit(0); } } early;\n__global__ void k() {}\n"
        "void launch(const float* x, float* y, int r, int c) { k<<<1, 1>>>(); }\n",
        Status.CRASHED,
        "exit code 0 before its launcher",
    ),
    ("\0\x01\x02\xff" * 100, Status.BUILD_FAILED, ""),
    ("x" * (2 << 20), Status.BUILD_FAILED, "characters"),
]


@pytest.mark.parametrize(("text", "status", "words"), FAULTS)
def test_faults_are_data(text: str, status: Status, words: str, store: Path) -> None:
    found = prepared(text, store)
    assert found.fault is not None and found.key is None
    assert (found.fault.status, words in found.fault.message) == (status, True), found.fault
    assert "root:" not in found.fault.message  # nothing of a stolen file reaches the log


def test_c_linkage_is_accepted(store: Path) -> None:
    found = prepared(TASK.source.replace("void launch(", 'extern "C" void launch('), store)
    assert found.fault is None and len(found.plans) == 1


def test_a_compile_bomb_runs_out_of_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "BUILD_SECONDS", 1.5)
    bomb = "template <int N, int M> struct F { enum { v = F<N - 1, 2 * M>::v + F<N - 1, 2 * M + 1>::v }; };\n"
    bomb += "template <int M> struct F<0, M> { enum { v = 1 }; };\n"
    bomb += "__global__ void k(float* y) { y[0] = F<24, 1>::v; }\n"
    found = prepared(bomb + LAUNCH, store)
    assert found.fault is not None and found.fault.status is Status.TIMED_OUT
    assert "1.5 s" in found.fault.message or "2 s" in found.fault.message


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100a"])
def test_other_architectures(architecture: str, store: Path) -> None:
    found = built(TASK.source, store, architecture)
    assert found.fault is None and f".target {architecture}" in found.ptx
    assert found.kernels[0].shared_bytes == 1024


def test_architecture_names() -> None:
    assert [architecture_of(8, 0), architecture_of(9, 0), architecture_of(12, 0)] == [
        "sm_80",
        "sm_90a",
        "sm_120a",
    ]
    with pytest.raises(KbError, match="sm_90a"):
        build(TASK.initial, "hopper; rm -rf /", Path("/nowhere"))


def test_no_compiler_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "_candidates", list)
    toolchain.cache_clear()
    try:
        with pytest.raises(KbError, match=r'pip install "kb-env\[nvcc\]"'):
            toolchain()
    finally:
        toolchain.cache_clear()


def test_the_compiler_cannot_reach_the_network_or_home() -> None:
    outcome = run_boxed(["/bin/sh", "-c", f"cat {Path.home()}/* {TASK.folder}/task.toml"], Box())
    assert outcome.stdout == b""


@pytest.mark.parametrize("cut", [0, 5, 64, 200, 2000])
def test_damaged_elf_files_are_refused(cut: int, store: Path) -> None:
    image = built(TASK.source, store).image
    with pytest.raises(KbError, match="ELF"):
        read_cubin(image[:cut])
