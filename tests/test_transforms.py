"""The catalogue: clean results everywhere, no result where the pattern is broken, numbers kept."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.prepare import prepare
from kb_env.task import builtin_names, load_task
from kb_env.transform_tree import parse
from kb_env.transforms import CATALOGUE, VARIANTS, applicable, constants, set_constant
from kb_env.types import Program

TASKS = {name: load_task(name) for name in builtin_names()}
BY_NAME = {item.name: item for item in CATALOGUE}


def changed(name: str, text: str, variant: int = 0) -> str | None:
    return BY_NAME[name].apply(text, variant)


# ---------------------------------------------------------------- what holds for every transform


@pytest.mark.parametrize("name", TASKS)
def test_results_on_builtin_kernels_are_clean_and_new(name: str) -> None:
    text = TASKS[name].source
    pairs = applicable(text)
    assert len(pairs) >= 5
    for position, variant in pairs:
        result = CATALOGUE[position].apply(text, variant)
        assert result is not None and result != text
        assert parse(result) is not None
        assert TASKS[name].entry in result


def test_every_transform_applies_to_some_builtin_kernel_or_right_solution() -> None:
    texts = [task.source for task in TASKS.values()]
    texts += [
        path.read_text()
        for task in TASKS.values()
        for path in sorted((Path(task.folder or "") / "right").glob("*.cu"))
    ]
    texts.append(PADDABLE)
    texts += [text.replace("constexpr int BLOCK = 256;", "").replace("BLOCK", "256") for text in texts[:3]]
    texts.append(LITERAL_BLOCK)
    missing = {item.name for item in CATALOGUE}
    for text in texts:
        missing -= {CATALOGUE[position].name for position, _ in applicable(text)}
    assert missing - {"add_const"} == set()  # the kernels shipped declare const themselves


def test_names_and_variants_are_well_formed() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert max(item.variants for item in CATALOGUE) == VARIANTS
    assert all(item.summary and item.technique and item.variants >= 1 for item in CATALOGUE)


def test_variants_out_of_range_give_nothing() -> None:
    for item in CATALOGUE:
        for variant in (-1, item.variants, item.variants + 100):
            assert all(item.apply(task.source, variant) is None for task in TASKS.values())


def test_transforms_are_picklable_pure_functions() -> None:
    text = TASKS["softmax"].source
    for item in CATALOGUE:
        copy = pickle.loads(pickle.dumps(item))
        assert copy.apply(text, 0) == item.apply(text, 0)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(TASKS)), st.integers(0, 1 << 30))
def test_walks_of_several_transforms_stay_clean(name: str, seed: int) -> None:
    draw, text = random.Random(seed), TASKS[name].source
    for _ in range(5):
        position, variant = draw.choice(applicable(text))
        text = CATALOGUE[position].apply(text, variant) or ""
        assert parse(text) is not None


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_arbitrary_text_is_left_alone_or_parsed(text: str) -> None:
    for position, variant in applicable(text):
        assert parse(CATALOGUE[position].apply(text, variant) or "") is not None
    constants(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\x01\x02",
        "__global__ void k(",
        "void f() { return " + "(" * 5000 + "1" + ")" * 5000 + "; }",
        "int a;\n" * 40_000,
        "__global__ void k(float* x) { x[0] = 1; } void f(float* x) { k<<<1>>>(x); }",
        "\ud800",
    ],
    ids=["empty", "binary", "cut", "deep", "large", "one launch parameter", "surrogate"],
)
def test_broken_and_hostile_text_gives_no_transform(text: str) -> None:
    for item in CATALOGUE:
        result = item.apply(text, 0)
        assert result is None or parse(result) is not None
    assert constants(text) == []


def test_other_scripts_and_line_ends_survive() -> None:
    text = TASKS["softmax"].source.replace("// Row", "// Zeile \u00fc \u4e2d \U0001f600 Row")
    for position, variant in applicable(text):
        assert "\u00fc \u4e2d \U0001f600" in (CATALOGUE[position].apply(text, variant) or "")
    windows = text.replace("\n", "\r\n")
    assert {CATALOGUE[p].name for p, _ in applicable(windows)} >= {"change_constant", "add_restrict"}


# ---------------------------------------------------------------- constants


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_setting_a_constant_there_and_back_gives_the_same_text(data: st.DataObject) -> None:
    text = TASKS[data.draw(st.sampled_from(sorted(TASKS)))].source
    found = constants(text)
    if not found:
        return
    item = data.draw(st.sampled_from(found))
    value = data.draw(st.sampled_from([choice for choice in item.choices if choice != item.value]))
    other = set_constant(text, item.name, value)
    assert other is not None
    assert {c.name: c.value for c in constants(other)}[item.name] == value
    assert set_constant(other, item.name, item.value) == text


def test_constants_stay_within_hardware_limits() -> None:
    assert {c.name: c.choices for c in constants(TASKS["matmul_fp32"].source)} == {"BLOCK": (8, 16, 32)}
    (block,) = constants(TASKS["softmax"].source)
    assert block.choices == (32, 64, 128, 256, 512, 1024)
    assert set_constant(TASKS["softmax"].source, "ROWS", 4) is None
    assert set_constant(TASKS["softmax"].source, "BLOCK", 256) is None


def test_a_constant_with_another_meaning_is_not_tunable() -> None:
    text = TASKS["softmax"].source.replace("BLOCK = 256;", "BLOCK = 256;\nconstexpr int CLASSES = 10;")
    assert [item.name for item in constants(text)] == ["BLOCK"]


LITERAL_BLOCK = """
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
void launch(const float* x, float* y, int n) { scale<<<(n + 255) / 256, 256>>>(x, y, n); }
"""


def test_block_literals_change_with_their_grid_or_not_at_all() -> None:
    assert "<<<(n + 511) / 512, 512>>>" in (changed("block_literals", LITERAL_BLOCK) or "")
    inside = LITERAL_BLOCK.replace("int i", "__shared__ float s[256];\n    int i")
    assert changed("block_literals", inside) is None
    other = LITERAL_BLOCK.replace("(n + 255) / 256", "n / 256 + 7")
    assert changed("block_literals", other) is None


# ---------------------------------------------------------------- patterns that must not match


def broken(name: str, old: str, new: str) -> str:
    text = TASKS[name].source
    assert old in text
    return text.replace(old, new)


NEAR_MISSES = [
    ("add_restrict", broken("vector_add", "(a, b, c, n);", "(a, a, c, n);")),
    ("add_restrict", broken("vector_add", "    add<<<", "    a = c;\n    add<<<")),
    ("read_only_loads", broken("vector_add", "(a, b, c, n);", "(c, b, c, n);")),
    ("vectorize_elements", broken("gelu", "x[i] * (1.0f", "x[i + 1] * (1.0f").replace("0.5f * x[i]", "0.5f")),
    ("vectorize_elements", broken("gelu", "y[i] = ", "y[i] += ")),
    ("vectorize_elements", broken("gelu", "if (i < n)", "if (i <= n)")),
    ("vectorize_elements", broken("gelu", "y[i] = 0.5f", "y[i] = y[i] + 0.5f")),
    ("vectorize_elements", broken("gelu", "(x, y, n);", "(x, x, n);")),
    ("coarsen", broken("gelu", "if (i < n)", "__syncthreads();\n    if (i < n)")),
    ("coarsen", broken("conv2d", "y[index] = sum;", "if (sum > 0) return;\n    y[index] = sum;")),
    ("hold_row", broken("softmax", "const float* in = x", "float* in = (float*)x")),
    ("hold_row", broken("cross_entropy", "sum += expf(in[c] - largest)", "if (c > 9) break; else sum += in[c]")),
    ("vectorize_rows", broken("row_sum", "sum += in[c];", "sum = sum * 0.5f + in[c];")),
    ("vectorize_rows", broken("softmax", "sum += expf(in[c] - largest)", "out[c] = expf(in[c]), sum += out[c]")),
    ("warp_shuffles", broken("row_sum", "float sum", "if (threadIdx.x > 9) return;\n    float sum")),
    ("warp_shuffles", broken("row_sum", "y[blockIdx.x] = scratch[0]", "y[blockIdx.x] = scratch[1]")),
    ("warp_shuffles", broken("row_sum", "BLOCK = 256", "BLOCK = 192")),
    ("warp_shuffles", broken("layernorm", "float mean = ", "float mean = cols > 9 ? 1.0f : ")),
    ("scan_shuffles", broken("prefix_sum", "step *= 2", "step *= 4")),
    ("tile_matmul", broken("matmul_fp32", "= sum;", "= 2.0f * sum;")),
    ("tile_matmul", broken("matmul_fp32", "(size_t)i * n + col", "(size_t)i * n + row")),
    ("tile_matmul", broken("matmul_fp32", "(a, b, c, m, n, k);", "(a, c, c, m, n, k);")),
    ("tile_transpose", broken("transpose", "(size_t)c * rows + r", "(size_t)c * cols + r")),
    ("swap_axes", broken("transpose", "if (r < rows", "if (threadIdx.x > 3) return;\n    if (r < rows")),
    ("privatize", broken("histogram", "cudaMemsetAsync(counts, 0,", "cudaMemsetAsync(counts, 1,")),
    ("privatize", broken("histogram", "keys[i]], 1)", "keys[i]], i)")),
    ("narrow_index", broken("depthwise_conv", "y[index] = sum", "y[index * 1] = sum")),
    ("fuse", broken("bias_gelu_residual_rmsnorm", "gelu<<<grid, BLOCK>>>(first,", "gelu<<<1, BLOCK>>>(first,")
     .replace("add<<<grid, BLOCK>>>(second,", "add<<<2, BLOCK>>>(second,")),
]  # fmt: skip


@pytest.mark.parametrize("name, text", NEAR_MISSES, ids=[f"{i}-{n}" for i, (n, _) in enumerate(NEAR_MISSES)])
def test_near_misses_are_left_alone(name: str, text: str) -> None:
    assert parse(text) is not None
    assert [variant for variant in range(BY_NAME[name].variants) if changed(name, text, variant)] == []


def test_fusion_keeps_the_value_between_where_it_is_read_again() -> None:
    text = TASKS["bias_gelu_residual_rmsnorm"].source
    dropped = changed("fuse", text) or ""
    assert "first" not in dropped.split("add_bias_gelu<<<")[1].split(";")[0]
    reused = text.replace("(second, residual, first, total)", "(second, first, first, total)")
    assert "first" in (changed("fuse", reused) or "").split("add_bias_gelu<<<")[-1].split(";")[0]
    read = text.replace("rmsnorm<<<rows, BLOCK>>>(first,", "rmsnorm<<<rows, BLOCK>>>(second,")
    kept = changed("fuse", read, 1) or ""
    assert "second" in kept.split("gelu_add<<<")[1].split(";")[0]


PADDABLE = """
__global__ void t(const float* x, float* y) {
    __shared__ float tile[32][32];
    tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
    __syncthreads();
    y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
void launch(const float* x, float* y) { t<<<1, dim3(32, 32)>>>(x, y); }
"""


def test_padding_needs_two_indices_everywhere() -> None:
    assert "tile[32][32 + 1]" in (changed("pad_shared", PADDABLE) or "")
    assert (
        changed("pad_shared", PADDABLE.replace("y[threadIdx.y", "float* flat = tile[0];\n    y[threadIdx.y"))
        is None
    )
    assert changed("pad_shared", PADDABLE.replace("[32][32]", "[32][33]")) is None


# ---------------------------------------------------------------- the compiler


def sampled() -> list[tuple[str, int, int]]:
    """One variant of each transform, each on another task where there are several."""
    places: dict[int, list[tuple[str, int, int]]] = {}
    for name, task in TASKS.items():
        for position, variant in applicable(task.source):
            places.setdefault(position, []).append((name, position, variant))
    draw = random.Random(7)
    return [draw.choice(found) for found in places.values()]


@pytest.mark.parametrize("name, position, variant", sampled(), ids=str)
def test_results_compile_and_record(name: str, position: int, variant: int, store: Path) -> None:
    task = TASKS[name]
    text = CATALOGUE[position].apply(task.source, variant)
    assert text is not None
    prepared = prepare(task, Program(name, text), "sm_90a", store, task.check[:2])
    assert prepared.fault is None, prepared.fault
    assert prepared.ptx and set(prepared.plans) == {case.name for case in task.check[:2]}
