"""A closed queueing network of one SM: how long its resident warps take through all its resources.

Warps are the customers. Each resource (issue slots, a pipe, the L1 port, this SM's share of L2
and DRAM) is a queue; waiting that needs no resource (memory latency, dependent arithmetic,
barriers) is a delay. Exact mean value analysis (Reiser and Lavenberg, 1980) gives the time of one
warp among n others, with the soft transition from latency-bound (few warps) to bandwidth-bound
(many) that Little's law demands. Only + - * / on floats: the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence


def response(demands: Sequence[float], delay: float, customers: int) -> float:
    """Time one warp needs while ``customers`` warps share the SM.

    ``demands`` is the service time of one warp at each queue, ``delay`` its waiting outside of
    queues (same unit). Never less than ``customers * max(demands)`` nor than their sum plus delay.
    """
    queues = [0.0] * len(demands)
    total = delay + sum(demands)
    for n in range(1, customers + 1):
        residence = [d * (1.0 + q) for d, q in zip(demands, queues, strict=True)]
        total = delay
        for item in residence:
            total += item
        if total <= 0.0:
            return 0.0
        rate = n / total
        queues = [rate * item for item in residence]
    return total
