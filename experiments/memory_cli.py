"""``kb memory ACTION DIR``: look into a memory, check it, move entries, take learning back."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kb_env.files import write_atomic
from kb_env.records import RecordError, from_plain, plain
from kb_env.task import load_task
from kb_env.types import KbError
from memory.entries import Entry, Experience, Filter, Forget, Operation, Situation, Stored
from memory.store import Memory, task_scale
from policies.maicrl_gradient import revert, updates

KINDS = {cls.__name__: cls for cls in (Experience, Stored, Operation, Forget)}


@dataclass(frozen=True)
class Args:
    """Look into a memory, check it, or move entries between memories."""

    action: Annotated[
        Literal["info", "verify", "query", "export", "import", "merge", "compact", "updates", "revert"],
        tyro.conf.Positional,
    ]
    folder: Annotated[Path, tyro.conf.Positional]
    """the memory's folder"""
    other: Annotated[Path | None, tyro.conf.Positional] = None
    """merge: the memory to take entries from; export, import: a JSON-lines file; revert: an update"""
    task: str | None = None
    """query: the task whose initial program is the situation"""
    device: str = "H200"
    """query: the GPU of the situation"""
    k: int = 5
    """query: how many recollections"""
    json: bool = False
    """print one JSON object as the last line"""


def opened(folder: Path) -> Memory:
    if not (folder / "log").is_dir():
        raise KbError(f"{folder} is no memory; name one made by kb run --memory or kb learn")
    return Memory(folder)


def info(memory: Memory, args: Args) -> int:
    found = dataclasses.asdict(memory.info())
    for name, value in found.items():
        print(f"{name:12} {value}")
    places = memory.rows.places()
    for (device, source), count in places.items():
        print(f"{device}, {source}: {count} experiences; believed best in an unknown situation:")
        for item in memory.knowledge.rank("unknown", device, source)[:8]:
            said = f"mean log gain {item.mean:+.3f}, verified {item.verified:.2f}, doubt {item.doubt:.3f}"
            print(f"  {item.technique:20} {said}")
    if args.json:
        rows = [{"device": d, "source": s, "experiences": n} for (d, s), n in places.items()]
        print(json.dumps({**found, "places": rows}))
    return 0


def verify(memory: Memory, args: Args) -> int:
    """Exit 1 if anything was damaged; everything else is still readable."""
    found = memory.verify()
    for item in found.damage:
        said = "a torn write, moved away by the next one" if item.kind == "tail" else "damaged and skipped"
        print(f"segment {item.segment}: {item.nbytes} bytes at {item.offset}: {said}")
    if found.unreadable:
        print(f"{found.unreadable} whole frames hold no entry that this version reads")
    bad = bool(found.damage) or bool(found.unreadable)
    print(
        f"{found.experiences} experiences, {found.programs} programs, {found.operations} operations: ", end=""
    )
    print("damage was found, the rest is intact" if bad else "intact")
    if args.json:
        print(json.dumps({"ok": not bad, **dataclasses.asdict(found)}))
    return 1 if bad else 0


def query(memory: Memory, args: Args) -> int:
    if args.task is None:
        raise KbError("query needs --task NAME: the situation to compare with")
    task = load_task(args.task)
    place = Situation(task.source, None, task.family, task.dtype, args.device, task_scale(task))
    found = memory.recall(place, args.k, Filter())
    for item in found:
        gain = (
            "failed"
            if item.record.gain is None
            else f"log gain {item.record.gain:+.3f} ({item.record.source})"
        )
        print(
            f"{item.similarity:.3f} {item.record.task}: {item.record.technique or 'edit'}, {item.record.status}, {gain}"
        )
    if args.json:
        rows = [{"similarity": item.similarity, "record": _readable(plain(item.record))} for item in found]
        print(json.dumps({"recollections": rows}))
    return 0


def _readable(value: object) -> object:
    """JSON has no bytes: the vector is left out, it can be made anew."""
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items() if key not in ("vector", "embedder")}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def show_updates(memory: Memory, args: Args) -> int:
    """What learning did to the knowledge base, and whether it still holds."""
    rows = []
    for item in updates(memory.knowledge):
        facts = json.loads(item.text)
        holds = sum(memory.knowledge.operations.holds(key) for key in facts["kept"])
        rows.append({"name": item.subject, "id": item.id, "holding": holds, **facts})
        print(
            f"{item.subject} [{item.id[:8]}]: {len(facts['kept'])} operations kept, {holds} of them hold, "
            f"{len(facts['rejected'])} rejected; log score of {facts['tested']} later steps "
            f"{facts['before']:.3f} -> {facts['after']:.3f}{_worth_words(facts.get('worth'))} {facts['fault']}"
        )
    if args.json:
        print(json.dumps({"updates": rows}))
    return 0


def _worth_words(worth: object) -> str:
    """The off-policy estimate of an update, where there were draws to estimate from."""
    if not isinstance(worth, list) or None in worth:
        return ""
    logged, before, after = worth
    return f"; mean log gain of later draws {logged:+.3f}, estimated {before:+.3f} -> {after:+.3f}"


def export(memory: Memory, args: Args) -> int:
    lines = [
        json.dumps({"kind": type(entry).__name__, "entry": _readable(plain(entry))})
        for entry in memory.entries()
    ]
    text = "".join(line + "\n" for line in lines)
    if args.other is None:
        sys.stdout.write(text)
    else:
        write_atomic(args.other, text.encode("utf-8", "surrogatepass"))
        print(f"{len(lines)} entries in {args.other}")
    return 0


def _nan(value: object) -> object:
    """Absent profile numbers are null in JSON and NaN in a profile."""
    if isinstance(value, dict) and isinstance(value.get("profile"), dict):
        profile = {key: float("nan") if item is None else item for key, item in value["profile"].items()}
        return {**value, "profile": profile}
    return value


def read_lines(path: Path) -> list[Entry]:
    """Entries of a JSON-lines file; KbError names the first bad line."""
    entries: list[Entry] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KbError(f"cannot read {path}: {error}; name a file made by kb memory export") from error
    for number, line in enumerate(lines, 1):
        try:
            raw = json.loads(line)
            entries.append(from_plain(KINDS[raw["kind"]], _nan(raw["entry"])))
        except (ValueError, KeyError, TypeError, RecordError) as error:
            raise KbError(f"{path}:{number} is no memory entry ({error}); nothing was imported") from error
    return entries


def main(args: Args) -> int:
    if args.action in ("merge", "import") and args.other is None:
        raise KbError(f"kb memory {args.action} needs what to take in as its last argument")
    if args.action == "revert" and args.other is None:
        raise KbError("kb memory revert needs the update to take back: kb memory updates lists them")
    if args.action == "import":
        assert args.other is not None
        entries = read_lines(args.other)
        memory = Memory(args.folder)
        print(f"{memory.add(entries)} new entries of {len(entries)}")
        memory.close()
        return 0
    memory = opened(args.folder)
    try:
        if args.action == "merge":
            assert args.other is not None
            print(f"{memory.merge(opened(args.other))} new entries")
            return 0
        if args.action == "revert":
            assert args.other is not None
            print(f"reverted: {len(revert(memory, str(args.other)).replaces)} operations no longer hold")
            return 0
        if args.action == "compact":
            before = memory.info().log_bytes
            memory.compact()
            print(f"{before} bytes before, {memory.info().log_bytes} after")
            return 0
        shown = {"info": info, "verify": verify, "query": query, "export": export, "updates": show_updates}
        return shown[args.action](memory, args)
    finally:
        memory.close()
