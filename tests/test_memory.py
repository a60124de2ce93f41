"""Recall, hold-outs, the index cache, merging, and the knowledge base."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kb_env.records import pack
from kb_env.types import KbError, Profile, Program
from memory.embed import HashedEmbedder, from_bytes, to_bytes, tokens
from memory.entries import (
    Entry,
    Experience,
    Filter,
    Holdout,
    Operation,
    Recollection,
    Situation,
    Stored,
    decode,
    encode,
)
from memory.index import VectorIndex
from memory.knowledge import Knowledge
from memory.signature import limiter, signature
from memory.starter import starter
from memory.store import Memory
from policies.recall import Recall
from policies.situation import hiding

DRAM = Profile("sim", dram_percent=90.0, sectors_per_request=16.0)
IDLE = Profile("sim", dram_percent=10.0, fp_percent=20.0, occupancy_percent=90.0)


def experience(number: int, task: str = "softmax", **changes: object) -> tuple[Stored, Experience]:
    # Names and numbers do not count for the embedder, so the structure has to differ.
    names = ("expf", "logf", "sqrtf", "rsqrtf", "tanhf", "erff", "fmaf", "fmaxf", "fminf", "powf")
    digits = zip(("+=", "-=", "*="), f"{number:03}", strict=True)
    body = " ".join(f"x[i] {sign} {names[int(digit)]}(x[i], y);" for sign, digit in digits)
    code = f"__global__ void k(float* x, float y) {{ int i = threadIdx.x; {body} }}"
    program = Program(task, code)
    record = Experience(
        task, task, "builtin", "float32", "H200", "modelled", "random", f"episode{number}", 0, program.key, None,
        f"edit {number}", "coalescing", "TIMED", 0.1, 0.05, 0.15, 1.1, DRAM, "", 6.0, time=float(number),
    )  # fmt: skip
    return Stored(program), dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def filled(folder: Path, count: int, tasks: tuple[str, ...] = ("softmax",)) -> Memory:
    memory = Memory(folder, sync="none")
    entries: list[Entry] = []
    for number in range(count):
        entries += experience(number, tasks[number % len(tasks)])
    memory.add(entries)
    return memory


def place(memory: Memory, number: int) -> Situation:
    program = experience(number)[0].program
    return Situation(program.text, DRAM, "softmax", "float32", "H200", 6.0)


def ids(found: list[Recollection]) -> list[str]:
    return [item.record.id for item in found]


def test_recall_finds_the_same_situation_first_and_survives_reopening(tmp_path: Path) -> None:
    memory = filled(tmp_path, 40)
    found = memory.recall(place(memory, 17), 5)
    assert found[0].record.id == experience(17)[1].id and found[0].similarity > 0.999
    assert found[0].before == experience(17)[0].program
    again = Memory(tmp_path)
    assert ids(again.recall(place(memory, 17), 5)) == ids(found)
    assert memory.recall(place(memory, 3), 500) and len(memory.recall(place(memory, 3), 500)) == 40


def test_empty_memory_recalls_nothing(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    assert memory.recall(place(memory, 1), 5) == [] and memory.recall(place(memory, 1), 0) == []


def test_adding_twice_keeps_one(tmp_path: Path) -> None:
    memory = filled(tmp_path, 5)
    assert memory.add([item for n in range(5) for item in experience(n)]) == 0
    assert memory.info().experiences == 5 and memory.info().programs == 5


def test_one_episode_does_not_fill_the_answer(tmp_path: Path) -> None:
    memory = filled(tmp_path, 6)
    memory.add([experience(n, episode="long", index=n)[1] for n in range(100, 140)])
    episodes = [item.record.episode for item in memory.recall(place(memory, 120), 6)]
    assert len(episodes) == 6 == len(set(episodes))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_held_out_experiences_never_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = ("matmul_a", "matmul_b", "softmax", "scan")
    families = {"matmul_a": "matmul", "matmul_b": "matmul", "softmax": "softmax", "scan": "scan"}
    memory = Memory(tmp_path_factory.mktemp("m"), sync="none")
    entries: list[Entry] = []
    for number in range(24):
        task = data.draw(st.sampled_from(names))
        device = data.draw(st.sampled_from(("H200", "A100")))
        entries += experience(number, task, family=families[task], device=device)
    memory.add(entries)
    out = Holdout(
        tuple(data.draw(st.sets(st.sampled_from(names)))),
        tuple(data.draw(st.sets(st.sampled_from(sorted(set(families.values())))))),
        tuple(data.draw(st.sets(st.sampled_from(("H200", "A100"))))),
    )
    expected = {item.id for item in entries if isinstance(item, Experience) and not out.hides(item)}
    assert set(ids(memory.recall(place(memory, 2), 50, holdout=out))) == expected
    blind = Memory(memory.folder, holdout=out)
    assert set(ids(blind.recall(place(memory, 2), 50))) == expected
    known = sum(
        blind.knowledge.posterior("coalescing", signature(DRAM), name, "modelled").count
        for name in ("H200", "A100")
    )
    assert known == len(expected)


def test_a_policy_s_hold_out_is_a_reader_with_the_same_embedder(tmp_path: Path) -> None:
    memory = filled(tmp_path, 6, ("softmax", "gelu"))
    memory.embedder = HashedEmbedder()
    hidden = hiding(memory, Holdout(tasks=("softmax",)))
    assert hidden is not None and hidden is not memory and hidden.embedder is memory.embedder
    assert {item.record.task for item in hidden.recall(place(memory, 2), 50)} == {"gelu"}
    assert {item.record.task for item in memory.recall(place(memory, 2), 50)} == {"gelu", "softmax"}
    assert hiding(memory, Holdout()) is memory and hiding(None, Holdout(tasks=("gelu",))) is None
    assert Recall(tmp_path, Holdout(tasks=("gelu",))).memory.holdout == Holdout(tasks=("gelu",))
    hidden.close()
    memory.close()


def test_filters(tmp_path: Path) -> None:
    memory = filled(tmp_path, 30, ("softmax", "scan"))
    assert {r.record.task for r in memory.recall(place(memory, 1), 30, Filter(tasks=("scan",)))} == {"scan"}
    times = [r.record.time for r in memory.recall(place(memory, 1), 30, Filter(since=10, until=20))]
    assert sorted(times) == [float(n) for n in range(10, 20)]
    assert memory.recall(place(memory, 1), 30, Filter(statuses=("WRONG",))) == []


def test_forgotten_is_gone_and_compaction_drops_it(tmp_path: Path) -> None:
    memory = filled(tmp_path, 10)
    target = experience(4)[1].id
    memory.forget(target, "measured on a sick machine")
    assert target not in ids(memory.recall(place(memory, 4), 10))
    before = memory.info()
    memory.compact()
    after = memory.info()
    assert after.experiences == 9 and after.log_bytes < before.log_bytes and after.programs == 9
    assert target not in ids(memory.recall(place(memory, 4), 10))
    assert target not in ids(Memory(tmp_path).recall(place(memory, 4), 10))


def test_merge_is_commutative_and_idempotent(tmp_path: Path) -> None:
    left, right = filled(tmp_path / "a", 12), Memory(tmp_path / "b", sync="none")
    right.add([item for n in range(8, 20) for item in experience(n)] + list(starter()))
    one, two = Memory(tmp_path / "one"), Memory(tmp_path / "two")
    one.merge(left)
    one.merge(right)
    two.merge(right)
    two.merge(left)
    assert two.merge(right) == 0 and one.info().experiences == two.info().experiences == 20
    query = place(one, 9)
    assert sorted(ids(one.recall(query, 50))) == sorted(ids(two.recall(query, 50)))
    for technique in one.knowledge.techniques:
        assert one.knowledge.posterior(
            technique, signature(DRAM), "H200", "modelled"
        ) == two.knowledge.posterior(technique, signature(DRAM), "H200", "modelled")


def test_a_damaged_or_foreign_index_is_rebuilt(tmp_path: Path) -> None:
    memory = filled(tmp_path, 30)
    wanted = ids(memory.recall(place(memory, 7), 10))
    memory.save_index()
    assert Memory(tmp_path).info().index == "loaded"
    path = next(tmp_path.glob("index-*.bin"))
    clean, header = path.read_bytes(), (tmp_path / "index.json").read_text()
    rng = random.Random(3)
    for _ in range(30):
        raw = bytearray(clean)
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        opened = Memory(tmp_path)
        assert opened.info().index == "rebuilt" and ids(opened.recall(place(memory, 7), 10)) == wanted
    path.write_bytes(clean)
    for _ in range(60):  # such as the place in the log from which to read on
        raw = bytearray(header.encode())
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        (tmp_path / "index.json").write_bytes(raw)
        assert ids(Memory(tmp_path).recall(place(memory, 7), 10)) == wanted
    sealed = json.loads(header)
    for change in (
        {"count": 31},
        {"dimension": 8},
        {"embedder": "other"},
        {"file": "../x"},
        {"space": "l2"},
        {"new": 1},
    ):
        facts = json.dumps({**json.loads(sealed["header"]), **change})
        crc = zlib.crc32(facts.encode())
        (tmp_path / "index.json").write_text(json.dumps({"header": facts, "crc": crc}))
        opened = Memory(tmp_path)
        assert opened.info().index == "rebuilt" and ids(opened.recall(place(memory, 7), 10)) == wanted


def test_an_index_older_than_the_log_is_completed(tmp_path: Path) -> None:
    memory = filled(tmp_path, 20)
    memory.save_index()
    memory.add(list(experience(77)))
    opened = Memory(tmp_path)
    assert opened.info().index == "loaded"
    assert opened.recall(place(memory, 77), 1)[0].record.id == experience(77)[1].id


def test_the_graph_agrees_with_exact_search(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(3000, 32)).astype(np.float32)
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    graph, exact = VectorIndex(32, exact_limit=500), VectorIndex(32, exact_limit=10_000)
    for start in range(0, 3000, 170):
        graph.add(data[start : start + 170])
        exact.add(data[start : start + 170])
    everything = np.ones(3000, np.bool_)
    hits = 0
    for query in data[:100] + 0.1 * rng.normal(size=(100, 32)).astype(np.float32):
        hits += len(set(graph.search(query, 10, everything)[0]) & set(exact.search(query, 10, everything)[0]))
    assert hits >= 950
    few = np.zeros(3000, np.bool_)
    few[::50] = True
    assert list(graph.search(data[0], 500, few)[0]) == list(exact.search(data[0], 500, few)[0])
    most = np.ones(3000, np.bool_)
    most[graph.search(data[0], 10, everything)[0]] = False
    found, _ = graph.search(data[0], 10, most)
    assert len(found) == 10 and most[found].all()
    assert graph.save(tmp_path, "gen", (1, 2), "e", b"state")
    loaded = VectorIndex(32, exact_limit=500)
    assert loaded.load(tmp_path, "gen", "e") is not None
    loaded.add(data[:10])
    assert loaded.count == 3010


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300))
def test_vectors_are_unit_deterministic_and_survive_storage(first: str, second: str) -> None:
    embedder = HashedEmbedder()
    one, two = (
        embedder.embed(Situation(code, DRAM, "f", "float32", "H200", 5.0)) for code in (first, second)
    )
    assert math.isclose(float(one @ one), 1.0, rel_tol=1e-5)
    assert np.array_equal(one, embedder.embed(Situation(first, DRAM, "f", "float32", "H200", 5.0)))
    back = from_bytes(to_bytes(one), embedder.dimension)
    assert back is not None and float(back @ one) > 0.9999
    if tokens(first) == tokens(second):
        assert np.array_equal(one, two)


def test_renaming_and_comments_do_not_move_a_program() -> None:
    first = "__global__ void f(float* input) { int i = threadIdx.x; input[i] = 2.0f * input[i]; } // twice"
    second = "__global__ void g(float* data) { int j = threadIdx.x; /* x2 */ data[j] = 2.0f * data[j]; }"
    assert tokens(first) == tokens(second)


@given(st.binary(max_size=200))
def test_vectors_from_garbage_are_unit_or_none(data: bytes) -> None:
    vector = from_bytes(data, len(data) // 2)
    assert vector is None or math.isclose(float(np.linalg.norm(vector)), 1.0, rel_tol=1e-3)


def test_signatures_read_numbers_only() -> None:
    assert signature(None) == "unknown" and limiter(Profile("sim")) == "unknown"
    assert signature(DRAM) == "dram+uncoalesced" and signature(IDLE) == "latency"
    assert (
        signature(dataclasses.replace(IDLE, occupancy_percent=10.0, launches=3.0))
        == "occupancy+many-launches"
    )


def test_knowledge_learns_shrinks_and_does_not_depend_on_order() -> None:
    entries: list[Experience | Operation] = [
        experience(n, technique="tiling", gain=1.0 + 0.01 * n, episode=f"g{n}")[1] for n in range(10)
    ]
    entries += [
        experience(n, technique="padding", gain=None, status="WRONG", episode=f"f{n}")[1] for n in range(10)
    ]
    entries += starter()
    knowledge, shuffled = Knowledge(), Knowledge()
    knowledge.add(entries)
    for entry in random.Random(1).sample(entries, len(entries)):
        shuffled.add([entry, entry])
    held = signature(DRAM)
    ranked = knowledge.rank(held, "H200", "modelled")
    assert ranked == shuffled.rank(held, "H200", "modelled")
    assert ranked[0].technique == "tiling" and 0.8 < ranked[0].mean < 1.1 and ranked[0].verified > 0.75
    padding = knowledge.posterior("padding", held, "H200", "modelled")
    assert padding.verified < 0.35 and padding.failures == 10 and padding.score < ranked[0].score / 5
    # Elsewhere the same technique is believed in, less and with more doubt.
    elsewhere = knowledge.posterior("tiling", "issue+spills", "A100", "modelled")
    assert 0.3 < elsewhere.mean < ranked[0].mean and elsewhere.count == 0
    assert knowledge.posterior("tiling", held, "H200", "modelled").doubt < elsewhere.doubt
    draws = [
        knowledge.rank(held, "H200", "modelled", rng=np.random.default_rng(seed))[0].technique
        for seed in range(30)
    ]
    assert draws.count("tiling") > 20


def test_evidence_overrules_a_planted_belief_and_notes_are_superseded() -> None:
    knowledge = Knowledge()
    wrong = Operation("belief", "unrolling", signature="dram", value=2.0, weight=1.0)
    knowledge.add([wrong])
    before = knowledge.posterior("unrolling", signature(DRAM), "H200", "modelled").mean
    knowledge.add([experience(n, technique="unrolling", gain=0.0, episode=f"e{n}")[1] for n in range(12)])
    assert before > 0.3 and knowledge.posterior("unrolling", signature(DRAM), "H200", "modelled").mean < 0.2
    first = Operation("note", "unrolling", "always", time=1.0, provenance=("e1",))
    second = Operation("note", "unrolling", "rarely", replaces=(first.id,), time=2.0)
    knowledge.add([second, first])
    assert [note.text for note in knowledge.notes("unrolling")] == ["rarely"]
    knowledge.add([Operation("retract", "unrolling", replaces=(second.id, wrong.id), time=3.0)])
    # Taken back is as if never made: what it had superseded holds again.
    assert [note.text for note in knowledge.notes("unrolling")] == ["always"] and len(
        knowledge.history()
    ) == 4
    knowledge.add([Operation("alias", "loop unrolling", "unrolling")])
    knowledge.add([experience(n, technique="loop unrolling", gain=0.5, episode=f"x{n}")[1] for n in range(3)])
    assert knowledge.posterior("unrolling", signature(DRAM), "H200", "modelled").count == 15


@given(st.sampled_from([e for n in range(3) for e in experience(n)] + starter()[:3]))
def test_entries_round_trip(entry: Entry) -> None:
    assert encode(decode(encode(entry))) == encode(entry) and decode(encode(entry)).id == entry.id


def test_a_frozen_memory_is_read_only(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    snapshot = Memory(tmp_path, frozen=True)
    memory.add(list(experience(50)))
    snapshot.refresh()
    assert snapshot.info().experiences == 3
    with pytest.raises(RuntimeError):
        snapshot.add(list(experience(51)))


def test_an_entry_damaged_after_the_index_was_saved_is_left_out_and_reported(tmp_path: Path) -> None:
    memory = filled(tmp_path, 30)
    memory.save_index()
    wanted = memory.recall(place(memory, 7), 30)
    segment = memory.log.segments()[0]
    position = memory.rows.position(7)
    with segment.path.open("r+b") as file:
        file.seek(position.offset + 40)
        byte = file.read(1)
        file.seek(position.offset + 40)
        file.write(bytes([byte[0] ^ 4]))
    opened = Memory(tmp_path)
    assert opened.info().index == "loaded"
    found = [item.record.id for item in opened.recall(place(memory, 7), 30)]
    hit = memory_id(7)
    assert found == [item.record.id for item in wanted if item.record.id != hit] and hit not in found
    assert [item.kind for item in opened.verify().damage] == ["middle"]


def memory_id(number: int) -> str:
    return experience(number)[1].id


def test_a_snapshot_outlives_a_compaction_and_others_follow_it(tmp_path: Path) -> None:
    memory = filled(tmp_path, 30)
    snapshot, other = Memory(tmp_path, frozen=True), Memory(tmp_path)
    before = [item.record.id for item in snapshot.recall(place(memory, 7), 10)]
    memory.forget(memory_id(7), "wrong")
    memory.compact()
    # The new log is shorter: old places in it would be other entries.
    assert [item.record.id for item in snapshot.recall(place(memory, 7), 10)] == before
    assert memory_id(7) in before
    assert memory_id(7) not in [item.record.id for item in other.recall(place(memory, 7), 10)]
    for item in (memory, snapshot, other):
        item.close()


def test_a_hold_out_hides_what_was_learned_from_it(tmp_path: Path) -> None:
    memory = filled(tmp_path, 6, ("softmax", "gelu"))
    for number, subject in ((0, "of softmax"), (1, "of gelu")):
        episode = experience(number, ("softmax", "gelu")[number])[1].episode
        memory.add([Operation("note", "coalescing", subject, "dram", provenance=(episode,))])
    memory.add([Operation("note", "coalescing", "of both", "dram", provenance=("episode0", "episode1"))])
    memory.add([Operation("note", "coalescing", "of nobody", "dram")])
    memory.add([Operation("note", "coalescing", "by us", "dram", provenance=("starter",))])

    def notes(holdout: Holdout) -> set[str]:
        known = Memory(tmp_path, holdout=holdout).knowledge
        return {item.text for item in known.notes("coalescing", "dram")}

    assert notes(Holdout()) == {"of softmax", "of gelu", "of both", "of nobody", "by us"}
    assert notes(Holdout(families=("softmax",))) == {"of gelu", "by us"}
    assert notes(Holdout(episodes=("episode1", "episode3", "episode5"))) == {"of softmax", "by us"}


def test_compaction_does_not_drop_what_another_version_wrote(tmp_path: Path) -> None:
    memory = filled(tmp_path, 3)
    memory.log.append([pack({"schema": 2, "kind": "Operation", "entry": {"new": 1}})])
    before = list(memory.log.scan())
    with pytest.raises(KbError, match="use the kb-env that wrote it; the log is unchanged"):
        memory.compact()
    assert list(memory.log.scan()) == before
    memory.close()


def test_following_compactions_keeps_no_old_files_open(tmp_path: Path) -> None:
    memory, reader = filled(tmp_path, 12), Memory(tmp_path)
    for number in range(4):
        memory.forget(memory_id(number), "wrong")
        memory.compact()
        reader.refresh()
        assert len(reader.recall(place(memory, 7), 20)) == 11 - number
        opened = {os.readlink(item) for item in Path("/proc/self/fd").iterdir() if item.exists()}
        gone = [item for item in opened if str(tmp_path) in item and "(deleted)" in item]
        assert not gone
    memory.close()
    reader.close()
