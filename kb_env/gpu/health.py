"""State of the GPU beside a measurement: clocks, temperature, throttling, other processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


def visible_name(index: int) -> str:
    """Name of the GPU that CUDA will call ``index``, without touching CUDA; ``cuda:INDEX`` without NVML."""
    try:
        import pynvml
    except ImportError:
        return f"cuda:{index}"
    visible = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    which = visible[index] if index < len(visible) else str(index)
    try:
        pynvml.nvmlInit()
        if which.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(which))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(which)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        return f"cuda:{index}"
    return name if isinstance(name, str) else name.decode()


@dataclass
class Monitor:
    """Reads NVML where it is present; ``read`` gives nothing otherwise.

    Other processes are counted by process id, so inside a container that hides them the number is
    a lower bound.
    """

    uuid: str

    def __post_init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self.uuid)
            self._nvml = pynvml
        except pynvml.NVMLError:
            return

    def read(self, own: frozenset[int] = frozenset()) -> dict[str, float | str]:
        """Clocks in MHz, temperature in degrees Celsius, power in watts, throttle reasons as a bit mask.

        ``own`` are the process ids that belong to the evaluator.
        """
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        queries = {
            "sm_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "temperature_c": lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "memory_used_mib": lambda: float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "throttle_reasons": lambda: float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "other_processes": lambda: float(
                sum(p.pid not in own for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
            ),
        }
        found: dict[str, float | str] = {}
        for name, query in queries.items():
            try:
                found[name] = query()
            except nvml.NVMLError:
                continue  # not every device and container answers every query
        return found
