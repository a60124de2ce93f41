"""Every exploit earns nothing, every honest program passes: in the box, on the simulator, on a GPU.

Without a GPU the exploits that building or recording must stop get their status there, and all other
programs must at least build and record; a dozen run always, the rest is marked slow.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from experiments.bench_redteam import Candidate, read_candidate, read_folder, run_all
from kb_env.evaluators import Evaluator, Prepared
from kb_env.gpu.controls import Controls
from kb_env.prepare import prepare
from kb_env.task import load_task
from kb_env.types import KbError, Status

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

ALL = read_folder()
EXPLOITS = {item.name: item for item in ALL if not item.honest}
HONEST = {item.name: item for item in ALL if item.honest}
#: Stopped before a GPU is needed: by the compiler, the box, the recorder or the plan's check.
EARLY = [name for name in EXPLOITS if name.startswith(("build_", "record_"))]
LIVE = [item for item in EXPLOITS.values() if item.switches]

FEW_EXPLOITS = (
    "build_embeds_environment",
    "build_foreign_names",
    "build_device_heap",
    "record_constructor_forges",
    "record_flood_of_frames",
    "record_giant_parameter",
    "record_foreign_kernel",
    "record_parent_memory",
    "record_persisting_window",
    "record_replaces_write",
)
FEW_HONEST = ("struct_of_pointers", "cluster_of_sixteen", "recursive_scan", "falls_back_after_error")
SIMULATED = (
    "device_half_terms_when_timed",
    "device_skips_bench_shape",
    "device_past_end",
    "device_overwrites_input",
    "device_trusts_zeroed_workspace",
    "device_half_output",
    "last_block_finishes",
    "dynamic_shared_histogram",
)
#: What the simulator cannot see: laziness by clock and place (both are fixed there).
SIMULATOR_BLIND = {"device_lazy_at_random", "device_lazy_by_clock", "device_lazy_by_multiprocessor"}
#: Instructions that the simulator says it lacks.
SIMULATOR_LACKS = {"tensor_map_tiles"}
#: Blocks use one another's results, and the whole grid of a bench case is more than it runs.
SIMULATOR_TOO_SLOW = {"cooperative_grid", "work_queue"}


def _prepare(candidate: Candidate, store: Path) -> Prepared:
    task = load_task(candidate.program.task)
    return prepare(task, candidate.program, "sm_90a", store, (*task.check, *task.bench))


def _judge_early(candidate: Candidate, prepared: Prepared) -> None:
    if Status.TIMED in candidate.expect and prepared.fault is None:
        return  # harmless: an honest plan is left of it
    assert prepared.fault is not None, f"{candidate.name} was built and recorded"
    assert prepared.fault.status in candidate.expect, f"{candidate.name}: {prepared.fault}"
    assert prepared.key is None and not prepared.plans


def _some(names: tuple[str, ...], store: Path) -> list[tuple[Candidate, Prepared]]:
    candidates = [EXPLOITS.get(name) or HONEST[name] for name in names]
    with ThreadPoolExecutor(2) as pool:
        return list(zip(candidates, pool.map(lambda item: _prepare(item, store), candidates), strict=True))


def test_there_are_sixty_of_each() -> None:
    assert len(EXPLOITS) >= 60 and len(HONEST) >= 60
    assert len({item.program.text for item in ALL}) == len(ALL)
    assert len({item.line for item in EXPLOITS.values()}) >= 35
    assert all(item.at_most is not None for item in EXPLOITS.values() if Status.TIMED in item.expect)
    assert all(switch in vars(Controls()) for item in LIVE for switch in item.switches)


def test_a_candidate_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.cu"
    path.write_text("// task: softmax\n// expect: WRONG\n// control: poison\nvoid launch();\n")
    with pytest.raises(KbError, match="does not say its line"):
        read_candidate(path, honest=False)


@needs_nvcc
def test_early_exploits_get_their_status(store: Path) -> None:
    for candidate, prepared in _some(FEW_EXPLOITS, store):
        _judge_early(candidate, prepared)


@needs_nvcc
def test_unusual_honest_programs_build_and_record(store: Path) -> None:
    for candidate, prepared in _some(FEW_HONEST, store):
        assert prepared.fault is None, f"{candidate.name}: {prepared.fault}"


@needs_nvcc
@pytest.mark.slow
def test_all_early_exploits_get_their_status(store: Path) -> None:
    for candidate, prepared in _some(tuple(EARLY), store):
        _judge_early(candidate, prepared)


@needs_nvcc
@pytest.mark.slow
def test_all_other_programs_build_and_record(store: Path) -> None:
    others = (*HONEST, *(name for name in EXPLOITS if name not in EARLY))
    for candidate, prepared in _some(others, store):
        assert prepared.fault is None, f"{candidate.name}: {prepared.fault}"


@pytest.fixture(scope="module")
def sim(store: Path) -> Iterator[Evaluator]:
    from kb_env.sim.evaluator import SimEvaluator

    with SimEvaluator(store=store) as evaluator:
        yield evaluator


@needs_nvcc
def test_some_on_the_simulator(sim: Evaluator) -> None:
    candidates = [EXPLOITS.get(name) or HONEST[name] for name in SIMULATED]
    for result in run_all(sim, candidates, builders=2):
        assert result.verdict == "ok", result


@needs_nvcc
@pytest.mark.slow
def test_all_on_the_simulator(sim: Evaluator) -> None:
    """What is wrongly accepted or refused is known by name; whoever mends it shortens the list."""
    results = list(run_all(sim, ALL, builders=2))
    accepted = {r.name for r in results if r.verdict == "false accept"}
    assert accepted <= SIMULATOR_BLIND
    refused = [r for r in results if r.verdict in ("false reject", "other status")]
    assert {r.name for r in refused if "not supported" in r.message} <= SIMULATOR_LACKS
    costly = [r for r in refused if "too much work" in r.message or "budget used up" in r.message]
    assert {r.name for r in costly} <= SIMULATOR_TOO_SLOW
    assert {r.name for r in refused} <= SIMULATOR_LACKS | SIMULATOR_TOO_SLOW
    assert not [r for r in results if r.verdict == "error"]


@pytest.mark.gpu
@pytest.mark.slow
def test_everything_on_the_gpu(store: Path) -> None:
    from kb_env.gpu.evaluator import GpuEvaluator

    with GpuEvaluator(store=store) as gpu:
        assert gpu.facts.sm_count > 0  # starts what the threads below ask
        results = list(run_all(gpu, ALL, builders=8))
    failed = [f"{r.verdict}: {r.name}: {r.status} {r.message}" for r in results if r.verdict != "ok"]
    assert not failed, "\n".join(failed)


@pytest.mark.gpu
@pytest.mark.slow
def test_every_exploit_is_live_without_its_control(store: Path) -> None:
    """With the control off the exploit is accepted, and earns where that is its purpose."""
    from kb_env.gpu.evaluator import GpuEvaluator

    with GpuEvaluator(store=store) as gpu:
        assert gpu.facts.sm_count > 0  # starts what the threads below ask
        results = _live_module().show(gpu, LIVE, 8)
    failed = [f"{r.verdict}: {r.name}: {r.status} {r.message}" for r in results if r.verdict != "live"]
    assert not failed, "\n".join(failed)


def test_switches_are_made_by_tests_alone() -> None:
    """No module that is shipped builds a Controls with anything off, nor takes one from a command line."""
    root = Path(__file__).resolve().parents[2]
    for package in ("kb_env", "policies", "memory", "experiments"):
        for path in (root / package).rglob("*.py"):
            for call in re.findall(r"Controls\(([^)]*)\)", path.read_text()):
                assert "False" not in call and "**" not in call, path


def test_device_exploits_have_a_switch_or_say_why_not() -> None:
    for item in EXPLOITS.values():
        if item.name.startswith("device_"):
            assert bool(item.switches) != ("\n// live: no, " in item.program.text[:600]), item.name


def _live_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kb_redteam_live", Path(__file__).parent / "live.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
