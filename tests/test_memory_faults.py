"""The memory after kills, bit flips, a full disk and a crowd: a few of each; the bench does hundreds."""

from __future__ import annotations

from pathlib import Path

from experiments.bench_memory_faults import WORK, Args, Report, crowd, entries, flips, full_disk, judge, kills
from memory.store import Memory


def test_kills(tmp_path: Path) -> None:
    reports = kills(tmp_path, Args(kills=4, seed=3))
    assert all(report.ok and report.trials == 1 for report in reports.values()) and set(reports) == set(WORK)


def test_flipped_bits_cost_what_they_hit_and_are_told(tmp_path: Path) -> None:
    report = flips(tmp_path, Args(flips=8, seed=3))
    assert report.ok and report.reported == 8


def test_full_disk_and_crowd(tmp_path: Path) -> None:
    report = full_disk(tmp_path)
    assert report.ok and report.reported > 0
    assert crowd(tmp_path, 0.2).ok


def test_the_judge_sees_what_is_lost_and_what_is_wrong(tmp_path: Path) -> None:
    with Memory(tmp_path) as memory:
        memory.add(entries(1))
    report = Report()
    judge(tmp_path, {1, 2}, report)
    assert report.lost == 1 and not report.ok
    stored, record = entries(3)
    with Memory(tmp_path) as memory:
        memory.add([stored, type(record)(**{**vars(record), "gain": 5.0})])
    judge(tmp_path, {1}, report)
    assert report.wrong >= 1
