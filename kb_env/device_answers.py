"""What the recorder tells a launcher that asks about the device: a table of attribute numbers.

The numbers are those of ``cudaDeviceAttr`` in CUDA's public header; the values are those of the
GPU that the plan is for. A launcher may size its grid by them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceAnswers:
    """``attributes`` holds (number, value) pairs; a query of any other number is refused."""

    name: str
    global_bytes: int
    attributes: tuple[tuple[int, int], ...]


#: Per architecture: name, multiprocessors, shared KiB per multiprocessor, threads and blocks per
#: multiprocessor, L2 MiB, memory GiB, memory bus bits, core kHz, memory kHz.
_GPUS: dict[str, tuple[str, int, int, int, int, int, int, int, int, int]] = {
    "sm_70": ("NVIDIA V100", 80, 96, 2048, 32, 6, 32, 4096, 1530000, 877000),
    "sm_75": ("NVIDIA T4", 40, 64, 1024, 16, 4, 16, 256, 1590000, 5001000),
    "sm_80": ("NVIDIA A100", 108, 164, 2048, 32, 40, 40, 5120, 1410000, 1215000),
    "sm_86": ("NVIDIA A10", 72, 100, 1536, 16, 6, 24, 384, 1695000, 6251000),
    "sm_89": ("NVIDIA L4", 58, 100, 1536, 24, 48, 24, 192, 2040000, 6251000),
    "sm_90a": ("NVIDIA H200", 132, 228, 2048, 32, 50, 141, 6144, 1980000, 3201000),
    "sm_100a": ("NVIDIA B200", 148, 228, 2048, 32, 126, 180, 8192, 1965000, 3996000),
    "sm_120a": ("NVIDIA RTX PRO 6000", 188, 100, 1536, 24, 128, 96, 512, 2430000, 14001000),
}


def answers_for(architecture: str) -> DeviceAnswers:
    """Answers of a typical GPU of this architecture (an unknown one answers like an H200)."""
    name, count, shared, threads, blocks, l2, memory, bus, clock, memory_clock = _GPUS.get(
        architecture, _GPUS["sm_90a"]
    )
    number = int(architecture.removeprefix("sm_").rstrip("af"))
    newer = number >= 80
    reserved = 1024 if newer else 0
    values = {
        1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2147483647, 6: 65535, 7: 65535,
        8: 49152, 9: 65536, 10: 32, 12: 65536, 13: clock, 14: 512, 15: 1, 16: count, 17: 0, 18: 0, 20: 0,
        31: 1, 32: 0, 36: memory_clock, 37: bus, 38: l2 << 20, 39: threads, 40: 3, 41: 1,
        75: number // 10, 76: number % 10, 78: 1, 79: 1, 80: 1, 81: shared << 10, 82: 65536,
        83: 0, 84: 0, 89: 1, 95: 1, 96: 0,
        97: (shared << 10) - reserved, 106: blocks, 108: (l2 << 20) // 8 * 5, 109: 0, 111: reserved,
        115: 1, 120: int(number >= 90),
    }  # fmt: skip
    return DeviceAnswers(name, memory << 30, tuple(sorted(values.items())))
