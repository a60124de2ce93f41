"""Faults at cluster scale: kill evaluators, nodes and drivers at random moments, resume, compare bit by bit.

    kb bench chaos --expected runs/undisturbed --backend replay:FILE --rounds 20

A Ray cluster of several nodes with fake GPUs runs on this machine. In each round ``kb compare`` plays
the plan of the undisturbed run folder into a fresh one, while an evaluator, a whole node and the
driver are killed with SIGKILL in random order at random moments; ``--resume`` goes on until the plan is
finished. Every planned episode must then be there exactly once and equal the undisturbed one but for clocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from experiments.run_folder import RunFolder, timeless
from experiments.scripted_server import ScriptedServer
from kb_env.edits import diff_action
from kb_env.files import write_atomic
from kb_env.types import KbError, digest
from policies.moves import moves

#: A driver that takes longer is a failure (seconds).
DRIVER_SECONDS = 1800.0


@dataclass(frozen=True)
class Args:
    """Kill what runs a plan, again and again, and see whether anything is lost."""

    expected: Path
    """run folder of the undisturbed run; its plan is repeated"""
    backend: str
    """replay:FILE with the undisturbed run's recording, or sim"""
    rounds: int = 20
    """how often the plan is played"""
    nodes: int = 3
    """nodes of the cluster, each with one fake GPU"""
    cpus: int = 2
    """logical processors of each node"""
    workers: int = 4
    """rollouts at once"""
    within: float = 20.0
    """each kill comes at most this many seconds after the last"""
    seed: int = 0
    """of the moments and the order of kills"""
    out: Path = Path("runs/chaos")
    """folder of the result; rounds that failed are kept there"""


def scripted(request: Mapping[str, Any]) -> str:
    """A stand-in for a model: a mechanical edit of the program in the prompt, chosen by its hash."""
    text = str(request["messages"][-1]["content"])
    source = (
        re.split(r"`{3,}", text.split("Current program", 1)[-1])[1].split("\n", 1)[-1].rstrip("\n") + "\n"
    )
    found = moves(source)
    if not found:
        return "submit"
    return diff_action(source, found[int(digest(text), 16) % len(found)].text)


def family(root: int) -> list[int]:
    """``root`` and all its descendants, by /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += parents.get(process, [])
    return found


def titled(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


class FakeCluster:
    """Ray nodes on this machine, each with one GPU that is not there; a context manager."""

    def __init__(self, nodes: int, cpus: int) -> None:
        from experiments.ray_pool import fake_cluster

        self._shape = {"num_cpus": cpus, "num_gpus": 1, "object_store_memory": 100 << 20}
        self.cluster = fake_cluster(self._shape)
        self.others = [self.cluster.add_node(**self._shape) for _ in range(nodes - 1)]

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def kill_evaluator(self, rng: random.Random) -> bool:
        """SIGKILL one evaluator at random; whether there was one."""
        found = [pid for pid in family(os.getpid()) if titled(pid).startswith(b"ray::Measuring")]
        if found:
            os.kill(rng.choice(found), signal.SIGKILL)
        return bool(found)

    def kill_node(self, rng: random.Random) -> bool:
        """SIGKILL everything of one node but the head, then start another."""
        node = self.others.pop(rng.randrange(len(self.others)))
        raylet = node.all_processes["raylet"][0].process.pid
        for process in reversed(family(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)
        self.others.append(self.cluster.add_node(**self._shape))
        return True

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()


@dataclass(frozen=True)
class Round:
    """One round: what was killed when (seconds from its start), driver starts, and what differs."""

    kills: tuple[tuple[str, float], ...]
    starts: int
    seconds: float
    missing: tuple[str, ...]
    different: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.missing or self.different or self.extra)


class Campaign:
    """Rounds of the plan of an undisturbed run folder."""

    def __init__(self, args: Args, url: str) -> None:
        self.args = args
        self.url = url
        self.rng = random.Random(args.seed)
        self.expected = {path.stem: path for path in (args.expected / "episodes").glob("*.msgpack")}
        if not self.expected:
            raise KbError(f"{args.expected} holds no episodes: make it with kb compare --record")
        self.plan: Mapping[str, Any] = RunFolder(args.expected).facts()["args"]  # type: ignore[assignment]

    def command(self, address: str, out: Path) -> list[str]:
        plan = self.plan
        words = [sys.executable, "-m", "experiments.cli", "compare", "--policies", plan["policies"]]
        words += ["--tasks", plan["tasks"], "--seeds", str(plan["seeds"]), "--steps", str(plan["steps"])]
        words += ["--backend", self.args.backend, "--ray", address, "--workers", str(self.args.workers)]
        words += ["--evaluators", str(self.args.nodes), "--evaluator-gpus", "1"]
        words += ["--model", "scripted", "--base-url", self.url, "--out", str(out), "--resume"]
        return words

    def play(self, cluster: FakeCluster, out: Path) -> Round:
        """Play the plan once under fire and compare what is there at the end."""
        begun = time.monotonic()
        kills: list[tuple[str, float]] = []
        targets = ["evaluator", "node", "driver"]
        self.rng.shuffle(targets)
        starts, driver = 1, self._drive(cluster.address, out)
        for target in targets:
            time.sleep(self.rng.uniform(0.5, self.args.within))
            self._wait_for_work(cluster, driver)
            if driver.poll() is not None:  # the plan was finished before its time
                break
            hit = True
            if target == "driver":
                driver.kill()
                driver.wait()
                starts, driver = starts + 1, self._drive(cluster.address, out)
            else:
                hit = (
                    cluster.kill_evaluator(self.rng) if target == "evaluator" else cluster.kill_node(self.rng)
                )
            if hit:
                kills.append((target, round(time.monotonic() - begun, 2)))
        while (code := driver.wait(timeout=DRIVER_SECONDS)) != 0 and starts < 8:
            starts, driver = starts + 1, self._drive(cluster.address, out)
        if code != 0:
            print(f"the driver ended with {code}: see {out}.log", file=sys.stderr, flush=True)
        return self._judge(out, tuple(kills), starts, time.monotonic() - begun)

    def _wait_for_work(self, cluster: FakeCluster, driver: subprocess.Popen[bytes]) -> None:
        """Until an evaluator is there to be disturbed: a kill of nobody proves nothing."""
        while driver.poll() is None:
            if any(titled(pid).startswith(b"ray::Measuring") for pid in family(os.getpid())):
                return
            time.sleep(0.2)

    def _drive(self, address: str, out: Path) -> subprocess.Popen[bytes]:
        with Path(f"{out}.log").open("ab") as log:
            return subprocess.Popen(self.command(address, out), stdout=log, stderr=log)

    def _judge(self, out: Path, kills: tuple[tuple[str, float], ...], starts: int, seconds: float) -> Round:
        folder, source = RunFolder(out), RunFolder(self.args.expected)
        there = {path.stem for path in (out / "episodes").glob("*.msgpack")}
        missing, different = [], []
        for name in sorted(self.expected):
            found, wanted = folder.load(name), source.load(name)
            if found is None or wanted is None:
                missing.append(name)
            elif timeless(found) != timeless(wanted):
                different.append(name)
        extra = tuple(sorted(there - set(self.expected)))
        return Round(kills, starts, round(seconds, 1), tuple(missing), tuple(different), extra)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a scripted model."""
    with ScriptedServer(scripted) as server:
        yield server.url


def main(args: Args) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="kb-chaos-"))
    rounds: list[Round] = []
    try:
        with served() as url, FakeCluster(args.nodes, args.cpus) as cluster:
            campaign = Campaign(args, url)
            for number in range(args.rounds):
                out = work / f"round{number}"
                found = campaign.play(cluster, out)
                rounds.append(found)
                print(
                    f"round {number}: {'ok' if found.ok else 'FAILED'}, {len(campaign.expected)} episodes, "
                    f"{len(found.missing)} missing, {len(found.different)} different, {len(found.extra)} extra; "
                    f"killed {found.kills}; {found.starts} driver starts, {found.seconds:.0f} s",
                    flush=True,
                )
                facts = [vars(item) | {"ok": item.ok} for item in rounds]
                write_atomic(args.out / "chaos.json", json.dumps(facts, indent=1).encode())
                if found.ok:
                    shutil.rmtree(out)
                else:
                    shutil.copytree(out, args.out / out.name, dirs_exist_ok=True)
                    shutil.copy(f"{out}.log", args.out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    good = sum(item.ok for item in rounds)
    print(f"{good} of {len(rounds)} rounds ended with every episode once and as undisturbed")
    return 0 if good == len(rounds) else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))
