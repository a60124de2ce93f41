"""What limits a kernel, found from the profile's numbers alone: the key of the knowledge base.

A signature is the main limiter and the flags that hold, such as ``dram+uncoalesced``. Each rule is
one line with its threshold; an absent number (NaN) satisfies no rule.
"""

from __future__ import annotations

import math

from kb_env.types import Profile

UNKNOWN = "unknown"

#: Flag, profile field, comparison, threshold.
FLAGS: tuple[tuple[str, str, str, float], ...] = (
    ("uncoalesced", "sectors_per_request", ">", 10.0),
    ("bank-conflicts", "bank_conflict_ways", ">", 1.5),
    ("divergent", "branch_efficiency_percent", "<", 85.0),
    ("spills", "spill_bytes", ">", 0.0),
    ("rereads", "bytes_over_floor", ">", 1.4),
    ("many-launches", "launches", ">", 1.5),
    ("few-blocks", "grid_waves", "<", 0.5),
)

#: Limiter and the profile field that is near its ceiling when it holds.
LIMITERS: tuple[tuple[str, str], ...] = (
    ("tensor", "tensor_percent"),
    ("dram", "dram_percent"),
    ("compute", "fp_percent"),
    ("issue", "issue_percent"),
)

#: Below this every unit idles most of the time: the kernel waits on latency.
BUSY_PERCENT = 55.0


def limiter(profile: Profile) -> str:
    """The busiest unit, or ``latency`` (``occupancy`` where few warps are resident) if none is busy."""
    loads = [(getattr(profile, name), word) for word, name in LIMITERS]
    known = [(value, word) for value, word in loads if math.isfinite(value)]
    if not known:
        return UNKNOWN
    value, word = max(known)
    if value >= BUSY_PERCENT:
        return word
    return "occupancy" if profile.occupancy_percent < 35.0 else "latency"


def flags(profile: Profile) -> tuple[str, ...]:
    """The conditions of :data:`FLAGS` that hold, in their order."""
    held = []
    for word, name, sign, threshold in FLAGS:
        value = getattr(profile, name)
        if value > threshold if sign == ">" else value < threshold:
            held.append(word)
    return tuple(held)


def signature(profile: Profile | None) -> str:
    """Main limiter and flags joined by ``+``; ``unknown`` without a profile."""
    if profile is None:
        return UNKNOWN
    return "+".join((limiter(profile), *flags(profile)))


def parts(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))
