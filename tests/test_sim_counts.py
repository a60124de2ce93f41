"""Counters for the time model: reuse distances, lines, hot words, costs of instructions, the corpus."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from sim_engine_runner import compile_ptx, launch, needs_nvcc

from experiments.bench_sim import read_measured
from experiments.sim_corpus import CALIBRATION, FOLDER, HELD_OUT, load
from kb_env.sim.cost import block_cost, cost
from kb_env.sim.ir import Block
from kb_env.sim.machine import Machine
from kb_env.sim.ptx import Instr, Op
from kb_env.types import KbError


@pytest.fixture(scope="module")
def machine(store) -> Machine:
    return Machine(compile_ptx("counted", store))


@needs_nvcc
def test_reuse_is_counted_by_distance_in_loads_of_a_warp(machine):
    x, y = np.zeros(4096, np.float32), np.zeros(2048, np.float32)
    found = launch(machine, "reuse", [x, y], grid=16, block=128, sample=8).extra
    blocks, sectors = 8, 4  # a line is four sectors
    assert found["block_sectors"] == blocks * 4 * 2 * sectors
    # Each warp's first line again after two loads, the block's first line three after warp 0 last had it or so.
    assert found["reuse_8"] == blocks * 4 * 2 * sectors
    assert found["reuse_1"] == found["reuse_8"]
    # Four independent loads go out together: one batch a warp, and it holds new data.
    assert found["load_batches"] == found["cold_batches"] == blocks * 4


@needs_nvcc
def test_lines_of_a_scattered_request(machine):
    x, y = np.zeros(1024, np.float32), np.zeros(32, np.float32)
    found = launch(machine, "scattered", [x, y], grid=1, block=32, sample=1)
    assert found.extra["global_load_lines"] == 32 and found.global_load_requests == 1
    assert found.extra["global_store_lines"] == 1


@needs_nvcc
def test_the_hottest_word(machine):
    bins = np.zeros(256, np.uint32)
    found = launch(machine, "hot", [bins], grid=1, block=128, sample=1)
    assert found.extra["atomic_hottest"] == 64
    assert bins[3] == sum(range(1, 65))


def instr(op: str, kind: str, *names: str) -> Instr:
    return Instr(op, (kind,), tuple(Op("reg", name) for name in names))


def test_a_division_costs_more_than_an_addition_and_a_move_next_to_nothing():
    assert (
        cost(instr("div", "s32", "a", "b", "c")).issued > 10 * cost(instr("add", "s32", "a", "b", "c")).issued
    )
    assert cost(instr("mov", "b32", "a", "b")).issued < 0.5
    wide = cost(Instr("mul", ("wide", "s32"), ()))
    assert wide.fma == 4.0 and wide.issued == 1.0  # one instruction that holds the pipe


def test_the_chain_is_the_longest_one():
    chain = [instr("fma", "f32", "a", "a", "b", "b") for _ in range(4)]
    apart = [instr("fma", "f32", f"r{i}", "b", "b", "b") for i in range(4)]
    assert block_cost(Block(chain))["machine_path"] == pytest.approx(4 * 4.1)
    assert block_cost(Block(apart))["machine_path"] == pytest.approx(4.1)
    assert block_cost(Block(chain))["machine_fma"] == block_cost(Block(apart))["machine_fma"] == 4.0


def test_the_corpus_is_the_one_that_was_drawn(tmp_path):
    entries = load()
    tasks = {entry.task for entry in entries}
    assert len(tasks) == 17
    for task in tasks:
        mine = [entry for entry in entries if entry.task == task]
        assert sum(entry.part == "held-out" for entry in mine) == HELD_OUT
        assert sum(entry.part == "calibration" for entry in mine) >= CALIBRATION + 1
        assert len({entry.text for entry in mine}) == len(mine)
    for name in ("manifest.json", "programs.json.xz"):
        shutil.copy(FOLDER / name, tmp_path)
    assert len(load(tmp_path)) == len(entries)
    rows = json.loads((tmp_path / "manifest.json").read_text())
    rows["programs"][0]["part"] = "held-out"
    (tmp_path / "manifest.json").write_text(json.dumps(rows))
    with pytest.raises(KbError, match="not the one that was drawn"):
        load(tmp_path)


def test_measured_times_belong_to_programs_of_the_corpus():
    device, items = read_measured(FOLDER / "h200.json")
    known = {(entry.task, entry.name): entry for entry in load()}
    assert device == "H200" and len(items) > 300
    for item in items:
        assert known[item.task, item.name].text == item.text
        assert known[item.task, item.name].part == item.part
