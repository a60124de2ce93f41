"""The ``kb`` command: one line per subcommand, each a module with ``Args`` and ``main(args) -> int``.

Exit 0: it ran (``check``: verified); 1: ``check`` rejected the candidate; 2: usage or harness
failure, with one line on stderr that names the remedy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import tyro

from kb_env.types import KbError

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("experiments.doctor", "what this machine offers: compiler, GPU, sandbox, backend"),
    "tasks": ("experiments.tasks", "list tasks, or admit one"),
    "run": ("experiments.run", "one policy on one task, with a run folder and a report"),
    "check": ("experiments.check", "verify and time one program"),
    "compare": ("experiments.compare", "policies x tasks x seeds at equal budgets"),
    "learn": ("experiments.learn", "rounds of rollouts with learning between"),
    "ablate": ("experiments.ablate", "a learning policy whole and with one part off at a time"),
    "evaluate": ("experiments.evaluate", "work off a spool of evaluation requests"),
    "report": ("experiments.report", "one HTML page of a run folder"),
    "memory": (
        "experiments.memory_cli",
        "info, verify, query, export, import, merge, compact, updates, revert",
    ),
    "bench evaluate": ("experiments.bench_evaluate", "phases and rate of evaluations"),
    "bench tasks": ("experiments.bench_tasks", "the table of all tasks, right and wrong programs"),
    "bench costs": (
        "experiments.bench_costs",
        "what episodes with a language model cost, by part of the prompt",
    ),
    "bench sim": ("experiments.bench_sim", "the simulator's model against measured times"),
    "bench chaos": ("experiments.bench_chaos", "kill what plays a plan, resume, compare bit by bit"),
    "bench rollouts": ("experiments.bench_rollouts", "what Ray costs, how rollouts scale"),
    "bench memory": ("experiments.bench_memory", "recall and latency of the episodic memory"),
    "bench memory-faults": (
        "experiments.bench_memory_faults",
        "kills, bit flips, a full disk and crowds against the memory",
    ),
    "bench expert": ("experiments.expert", "plumbing: a scripted expert drives the learning of maicrl"),
    "bench aa": (
        "experiments.bench_aa",
        "coverage of the intervals, repeated measurement in fresh processes",
    ),
    "bench leaks": (
        "experiments.bench_leaks",
        "what a thousand evaluations with hangs and crashes leave behind",
    ),
    "bench hostile": ("experiments.bench_hostile", "broken and hostile input: clear statuses, nothing left"),
    "bench redteam": ("experiments.bench_redteam", "exploits accepted and honest programs refused"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  kb {name:<{width}}  {text}" for name, (_, text) in sorted(COMMANDS.items())]
    return "\n".join(["usage: kb COMMAND [options]; kb COMMAND --help explains one", *lines])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    name = " ".join(words[:2]) if words[0] == "bench" else words[0]
    if name not in COMMANDS:
        print(f"kb: no command {name!r}; kb --help lists them", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(COMMANDS[name][0])
        args = tyro.cli(module.Args, args=words[len(name.split()) :], prog=f"kb {name}")
        return int(module.main(args))
    except KbError as error:
        from kb_env.observe import legible  # the error may quote a compiler, and so a candidate

        print(f"kb: {legible(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kb: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 2


if __name__ == "__main__":
    sys.exit(main())
