"""Outputs of bench cases at some places: what is timed on the simulator must also be right."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from kb_env.sim.evaluator import SimEvaluator
from kb_env.sim.spot import POISON, Spots, wrong_spot
from kb_env.task import load_task
from kb_env.types import Case, Program, Status

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

ROWS = """
__global__ void rows(const float* x, float* y, int cols, int used) {
    float sum = 0;
    for (int c = threadIdx.x; c < used; c += 32) sum += x[(size_t)blockIdx.x * cols + c];
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
__global__ void twice(float* y, const float* half, int rows) {
    int r = blockIdx.x * 256 + threadIdx.x;
    if (r < rows) y[r] = half[r] + half[r];
}
__global__ void halves(const float* x, float* half, int cols, int used) {
    float sum = 0;
    for (int c = threadIdx.x; c < used; c += 32) sum += 0.5f * x[(size_t)blockIdx.x * cols + c];
    for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) half[blockIdx.x] = sum;
}
"""
ONE = "void launch(const float* x, float* y, int rows_, int cols) { rows<<<GRID, 32>>>(x, y, cols, USED); }"
TWO = """
void launch(const float* x, float* y, int rows_, int cols) {
    float* half;
    cudaMalloc(&half, rows_ * 4);
    halves<<<GRID, 32>>>(x, half, cols, USED);
    twice<<<(rows_ + 255) / 256, 256>>>(y, half, rows_);
    cudaFree(half);
}
"""
#: Timed at a size of its own, so that a test takes a second.
BENCH = {"rows": 3000, "cols": 512}


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory):
    with SimEvaluator(store=tmp_path_factory.mktemp("store")) as evaluator:
        yield evaluator


def judged(sim: SimEvaluator, launch: str, grid: str, used: str):
    task = load_task("row_sum")
    task = replace(task, check=task.check[:1], bench=(Case("bench0", BENCH),))
    text = ROWS + launch.replace("GRID", grid).replace("USED", used)
    return sim.evaluate(task, Program("row_sum", "#include <cuda_runtime.h>\n" + text))


@needs_nvcc
@pytest.mark.parametrize("launch", [ONE, TWO])
def test_honest_programs_pass(sim, launch):
    found = judged(sim, launch, "rows_", "cols")
    assert found.status is Status.TIMED, found.message


@needs_nvcc
@pytest.mark.parametrize("launch", [ONE, TWO])
def test_half_of_the_terms_at_the_timed_size_is_wrong(sim, launch):
    found = judged(sim, launch, "rows_", "rows_ == 3000 ? cols / 2 : cols")
    assert found.status is Status.WRONG
    assert "bench0" in found.message and "at this size" in found.message


@needs_nvcc
def test_half_of_the_rows_at_the_timed_size_is_wrong(sim):
    found = judged(sim, ONE, "rows_ == 3000 ? rows_ / 2 : rows_", "cols")
    assert found.status is Status.WRONG and "the grid writes about 50% of the outputs" in found.message
    found = judged(sim, TWO, "rows_ == 3000 ? rows_ / 2 : rows_", "cols")
    assert found.status is Status.WRONG


def spots(values: list[float]) -> Spots:
    number = len(values)
    return Spots({"y": np.arange(number)}, {"y": np.array(values)}, {"y": np.full(number, 0.01)})


def test_unwritten_positions_count_only_where_all_blocks_ran():
    task = load_task("row_sum")
    data = np.array([1.0, 2.0], np.float32).tobytes() + bytes([POISON]) * 4
    assert wrong_spot(task, spots([1.0, 2.005, 7.0]), {"y": data}, whole=False) is None
    assert "never written" in str(wrong_spot(task, spots([1.0, 2.005, 7.0]), {"y": data}, whole=True))
    assert "y[1] is 2" in str(wrong_spot(task, spots([1.0, 2.5, 7.0]), {"y": data}, whole=False))
    nan = np.array([np.nan, 2.0, 7.0], np.float32).tobytes()
    assert wrong_spot(task, spots([1.0, 2.0, 7.0]), {"y": nan}, whole=False) is not None
    assert wrong_spot(task, spots([np.nan, 2.0, 7.0]), {"y": nan}, whole=False) is None
