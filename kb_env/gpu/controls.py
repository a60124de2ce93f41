"""The evaluator's controls and numbers, as data.

Every control is on; only tests of the controls themselves build an object with one switched off, to
show that the exploit it stops is live. No command of this package takes such an object.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Controls:
    """Controls that tests may switch off one by one, and the sizes of the schedule.

    ``min_pairs`` and ``max_pairs`` bound the paired runs of a bench case; between them the schedule
    stops when the interval's half width is under ``half_width`` (log units). Times in seconds.
    """

    values_checked: bool = True
    #: the task's own bounds; off: the one absolute and relative tolerance that other harnesses have
    numeric: bool = True
    #: expected results out of the program's reach; off: in its memory, and believed as it left them
    apart: bool = True
    poison: bool = True
    guards: bool = True
    inputs_checked: bool = True
    timed_checked: bool = True
    fresh_content: bool = True
    #: off: the one seed that everybody uses
    secret_seed: bool = True
    random_order: bool = True
    cold_l2: bool = True
    reload: bool = True
    second_look: bool = True
    baseline_agrees: bool = True
    floor: bool = True
    #: the host clock's two looks at the events' times; off: batches are not run, single runs only recorded
    referee: bool = True
    proof: bool = True
    share: bool = True
    check_runs: int = 2
    min_pairs: int = 30
    max_pairs: int = 90
    half_width: float = 0.01
    run_seconds: float = 1.0
    run_factor: float = 10.0
    evaluation_seconds: float = 30.0
