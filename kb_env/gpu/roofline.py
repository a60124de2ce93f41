"""What bounds a task on the GPU at hand: its description and its time at the roofline."""

from __future__ import annotations

from dataclasses import replace

from kb_env.devices import DEVICES, Device
from kb_env.gpu.protocol import DeviceFacts
from kb_env.types import Case, Task, arithmetic


def describe(facts: DeviceFacts) -> Device | None:
    """The described GPU of this name, with what the driver reports in place of the table's figures.

    None for a GPU without a description: no floor is then enforced and no roofline reported.
    """
    words = facts.name.replace("-", " ").replace("RTX ", "RTX").upper().split()
    for name, device in DEVICES.items():
        if name.upper() in words:
            clock = max(device.clock_ghz, facts.clock_mhz / 1000)
            return replace(device, sm_count=facts.sm_count, l2_bytes=facts.l2_bytes, clock_ghz=clock)
    return None


def roofline_us(device: Device, task: Task, case: Case) -> float:
    """Time in microseconds at the roofline: compulsory traffic at the bandwidth that a plain copy
    reaches, or necessary operations at the peak of the task's unit, whichever is more
    (Williams, Waterman, Patterson, CACM 52(4), 2009)."""
    traffic = float(arithmetic(task.bytes_moved, case.sizes))
    operations = float(arithmetic(task.flops, case.sizes))
    memory = traffic / (device.dram_gbps * device.dram_efficiency * 1e3)
    return max(memory, operations / device.peak_ops(task.unit) * 1e6)
