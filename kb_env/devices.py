"""Descriptions of GPUs: what the simulator models and what a physics floor is computed from.

Rates are per SM and clock, counted in thread-level operations (fma = one operation), from the
throughput table of the CUDA C++ Programming Guide ("Arithmetic Instructions"); tensor rates are
multiply-accumulates per SM and clock, derived from the dense peak of each data sheet. Level-2
bandwidths and latencies are estimates of what microbenchmarks reach (sim_micro.cu on the H200; Luo et
al. 2024 for A100 and RTX 4090, Jia et al. 2019 for the T4), not vendor figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kb_env.types import Case, KbError, Task, arithmetic


@dataclass(frozen=True)
class Device:
    """One GPU model. Bandwidths in GB/s (1e9 bytes), sizes in bytes, times in microseconds or ns."""

    name: str
    architecture: str
    sm_count: int
    clock_ghz: float
    dram_gbps: float
    dram_efficiency: float  # share of the nominal bandwidth that a plain copy reaches
    l2_bytes: int
    l2_gbps: float
    l1_bytes: int  # L1 and shared memory together, per SM
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int  # taken by the system for each resident block
    registers_per_sm: int
    max_warps: int
    max_blocks: int
    dram_ns: float  # latency of one load that goes to device memory, alone
    l2_ns: float
    rates: Mapping[str, int]  # operations per SM and clock by pipe
    tensor_macs: Mapping[str, int]  # by input type; 0 or absent: the type has no tensor cores
    #: Share of the tensor peak that mma.sync and wmma reach; Hopper's wgmma alone reaches all of it
    #: (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024).
    mma_share: float = 1.0
    launch_us: float = 2.2  # a single short kernel between two events on a busy queue
    gap_us: float = 1.1  # each further kernel of the same call
    l2_slices: int = 48  # units of the L2 that work side by side

    @property
    def max_threads(self) -> int:
        return self.max_warps * 32

    def peak_ops(self, unit: str) -> float:
        """Peak of ``unit`` in operations per second, a multiply-add counting as two.

        float32 allows for three-term TF32 products, which reach full accuracy on tensor cores.
        """
        per_clock = 2.0 * self.tensor_macs.get(unit, 0)
        if unit == "float32":
            per_clock = max(2.0 * self.rates["fp32"], 2.0 * self.tensor_macs.get("tf32", 0) / 3)
        elif unit == "float64":
            per_clock = max(2.0 * self.rates["fp64"], per_clock)
        elif unit in ("float16", "bfloat16"):
            per_clock = max(2.0 * self.rates["fp16"], per_clock)
        elif unit.startswith(("int", "uint", "bool")):
            per_clock = max(2.0 * self.rates["int"], 2.0 * self.tensor_macs.get("int8", 0))
        if per_clock <= 0:
            raise KbError(
                f"{self.name} has no peak for unit {unit!r}: use float32, float16, float64 or int32"
            )
        return per_clock * self.sm_count * self.clock_ghz * 1e9


_AMPERE_UP = {"max_blocks": 32, "shared_reserved": 1024, "registers_per_sm": 65536}
_HOPPER_RATES = {"fp32": 128, "fp64": 64, "fp16": 256, "int": 64, "special": 16, "convert": 64}
_ADA_RATES = {"fp32": 128, "fp64": 2, "fp16": 128, "int": 64, "special": 16, "convert": 64}
_HOPPER_TENSOR = {"float16": 2048, "bfloat16": 2048, "tf32": 1024, "int8": 4096, "fp8": 4096, "float64": 128}

#: Every GPU that can be modelled, by name.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # NVIDIA H200 SXM data sheet (4.8 TB/s, 989 TFLOPS dense fp16); copy 4.3 TB/s and latency measured
        # on one H200 in December 2026; H100 white paper for the SM.
        Device(
            "H200", "sm_90a", 132, 1.98, 4800.0, 0.90, 60 << 20, 7200.0, 256 << 10, 228 << 10, 227 << 10,
            max_warps=64, mma_share=0.63, dram_ns=340.0, l2_ns=145.0, l2_slices=96,
            launch_us=2.4, gap_us=1.27, rates=_HOPPER_RATES, tensor_macs=_HOPPER_TENSOR,
            **_AMPERE_UP,
        ),
        # NVIDIA H100 Tensor Core GPU Architecture white paper, SXM5 80 GB; latencies and L2 as measured on the H200.
        Device(
            "H100", "sm_90a", 132, 1.98, 3350.0, 0.90, 50 << 20, 7200.0, 256 << 10, 228 << 10, 227 << 10,
            max_warps=64, mma_share=0.63, dram_ns=340.0, l2_ns=145.0, l2_slices=80,
            launch_us=2.4, gap_us=1.27, rates=_HOPPER_RATES, tensor_macs=_HOPPER_TENSOR,
            **_AMPERE_UP,
        ),
        # NVIDIA A100 Tensor Core GPU Architecture white paper, SXM 80 GB (data sheet: 2,039 GB/s).
        Device(
            "A100", "sm_80", 108, 1.41, 2039.0, 0.88, 40 << 20, 4300.0, 192 << 10, 164 << 10, 163 << 10,
            max_warps=64, dram_ns=330.0, l2_ns=145.0, l2_slices=80,
            rates={"fp32": 64, "fp64": 32, "fp16": 256, "int": 64, "special": 16, "convert": 64},
            tensor_macs={"float16": 1024, "bfloat16": 1024, "tf32": 512, "int8": 2048, "float64": 64},
            **_AMPERE_UP,
        ),
        # NVIDIA L40S data sheet (362 TFLOPS dense fp16, 864 GB/s); Ada white paper for the SM and 96 MB L2.
        Device(
            "L40S", "sm_89", 142, 2.52, 864.0, 0.90, 96 << 20, 5000.0, 128 << 10, 100 << 10, 99 << 10,
            max_warps=48, dram_ns=260.0, l2_ns=110.0, rates=_ADA_RATES,
            tensor_macs={"float16": 512, "bfloat16": 512, "tf32": 256, "int8": 1024, "fp8": 1024},
            **{**_AMPERE_UP, "max_blocks": 24},
        ),
        # NVIDIA Ada GPU Architecture white paper, GeForce RTX 4090 (fp16 with fp32 accumulate: half rate).
        Device(
            "RTX4090", "sm_89", 128, 2.52, 1008.0, 0.91, 72 << 20, 5000.0, 128 << 10, 100 << 10, 99 << 10,
            max_warps=48, dram_ns=240.0, l2_ns=110.0, rates=_ADA_RATES,
            tensor_macs={"float16": 256, "bfloat16": 256, "tf32": 128, "int8": 1024, "fp8": 512},
            **{**_AMPERE_UP, "max_blocks": 24},
        ),
        # NVIDIA Turing GPU Architecture white paper and T4 data sheet (65 TFLOPS fp16, 320 GB/s); L2
        # bandwidth from Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking" (2019).
        Device(
            "T4", "sm_75", 40, 1.59, 320.0, 0.75, 4 << 20, 1270.0, 96 << 10, 64 << 10, 64 << 10,
            max_warps=32, dram_ns=290.0, l2_ns=130.0, max_blocks=16, shared_reserved=0,
            registers_per_sm=65536,
            rates={"fp32": 64, "fp64": 2, "fp16": 128, "int": 64, "special": 16, "convert": 16},
            tensor_macs={"float16": 512, "int8": 1024},
        ),
    )
}  # fmt: skip


@cache
def _by_name() -> dict[str, Device]:
    return {name.lower(): device for name, device in DEVICES.items()}


def device(name: str) -> Device:
    """The description of the GPU called ``name`` (case does not matter).

    Raises:
        KbError: naming the known GPUs.
    """
    found = _by_name().get(name.lower())
    if found is None:
        raise KbError(f"no description of a GPU {name!r}: choose one of {', '.join(DEVICES)}")
    return found


def resident_blocks(device: Device, registers: int, shared: int, threads: int) -> int:
    """Blocks of one kernel that one SM holds at a time; 0 if not even one fits.

    ``registers`` per thread, ``shared`` bytes per block, ``threads`` per block. Registers are
    handed out in units of 256 a warp, shared memory in units of 128 bytes (CUDA occupancy rules).
    """
    warps = -(-threads // 32)
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    per_block_shared = -(-shared // 128) * 128 + device.shared_reserved
    if shared > device.shared_per_block or registers > 255:
        return 0
    # Each of the four schedulers has its own quarter of the register file.
    warps_by_registers = (device.registers_per_sm // 4 // per_warp) * 4
    limits = [device.max_blocks, device.max_warps // warps, warps_by_registers // warps]
    if per_block_shared:
        limits.append(device.shared_per_sm // per_block_shared)
    return max(0, min(limits))


def occupancy(device: Device, registers: int, shared: int, threads: int) -> int:
    """Active warps per SM that registers, shared memory and block size allow."""
    return resident_blocks(device, registers, shared, threads) * -(-threads // 32)


def floor_us(device: Device, task: Task, case: Case) -> float:
    """Time in microseconds below which no honest program can be, from cold caches.

    The compulsory traffic at the nominal bandwidth, less what outputs may stay in L2 when the
    last kernel ends, or the necessary operations at the peak of the task's unit, whichever is more.
    """
    written = sum(a.nbytes(case.sizes) for a in task.arguments if a.kind in ("output", "inout"))
    traffic = float(arithmetic(task.bytes_moved, case.sizes)) - min(written, device.l2_bytes)
    operations = float(arithmetic(task.flops, case.sizes))
    memory = max(traffic, 0.0) / (device.dram_gbps * 1e3)
    return max(memory, operations / device.peak_ops(task.unit) * 1e6)
