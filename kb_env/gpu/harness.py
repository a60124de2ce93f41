"""What the runner does around the candidate's launches: cold cache, scrubbed state, busy queue, events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kb_env.gpu.driver import call, driver
from kb_env.gpu.protocol import CudaFault, DeviceFacts, Ran

_PROOF_WORD = 0x01010101
_SHARED_LAUNCH_BYTES = 32 << 10
#: The known wait, what its reading may be off by, and how often a disturbed reading may be taken again.
_PROOF_NS, _PROOF_SLACK_US, _PROOF_TRIES = 100_000, 5.0, 5


class Harness:
    """The harness's own kernels and events in the runner's context."""

    def __init__(self, facts: DeviceFacts, stream: Any) -> None:
        self._stream = stream
        self._sms = facts.sm_count
        text = (Path(__file__).parent / "kernels.ptx").read_bytes() + b"\0"
        self._module = call(driver.cuModuleLoadData, text)
        self._read, self._scrub, self._spin = (
            call(driver.cuModuleGetFunction, self._module, name)
            for name in (b"kb_read", b"kb_scrub", b"kb_spin")
        )
        # Twice the L2, read from end to end, leaves nothing of what was there and nothing to write back.
        self._flush_bytes = max(2 * facts.l2_bytes, 8 << 20) // 16 * 16
        self._flush = int(call(driver.cuMemAlloc, self._flush_bytes))
        self._sum = int(call(driver.cuMemAlloc, 4))
        self._events = tuple(call(driver.cuEventCreate, 0) for _ in range(2))
        limits = driver.CUlimit
        for name in ("CU_LIMIT_PERSISTING_L2_CACHE_SIZE", "CU_LIMIT_MALLOC_HEAP_SIZE"):
            _try_limit(getattr(limits, name), 0)
        self._shared = facts.shared_per_sm
        self._kept: list[object] = []
        self._scrub_launch = self._prepare_scrub()
        self._read_launch = self._prepare(
            self._read, self._sms * 8, 256, (self._flush, self._flush_bytes // 16, self._sum), "QQQ"
        )

    def _prepare_scrub(self) -> Callable[[], None]:
        """One block a multiprocessor, each holding nearly all of its shared memory."""
        shared = self._shared - 1024
        name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            call(driver.cuFuncSetAttribute, self._scrub, name, shared)
        except CudaFault:
            shared = _SHARED_LAUNCH_BYTES
        return self._prepare(self._scrub, self._sms, 1024, (shared // 4, 0x5CDEADC5), "II", shared)

    def _prepare(
        self, function: Any, grid: int, block: int, values: Sequence[int], types: str, shared: int = 0
    ) -> Callable[[], None]:
        kinds = {"Q": ctypes.c_uint64, "I": ctypes.c_uint32}
        cells = [kinds[kind](value) for kind, value in zip(types, values, strict=True)]
        pointers = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self._kept += [cells, pointers]
        where = ctypes.addressof(pointers)
        stream = self._stream
        return lambda: call(
            driver.cuLaunchKernel, function, grid, 1, 1, block, 1, 1, shared, stream, where, 0
        )

    def prove(self) -> None:
        """Run a kernel whose result is known and time a wait whose length is known.

        A GPU that gets them wrong is not measured on; nor is one beside a program that made it so.

        Raises:
            CudaFault: named ``WRONG_PROOF`` if the result or the time is wrong.
        """
        self._prove_result()
        self._prove_clock()

    def _prove_result(self) -> None:
        call(driver.cuMemsetD32Async, self._flush, _PROOF_WORD, self._flush_bytes // 4, self._stream)
        call(driver.cuMemsetD32Async, self._sum, 0, 1, self._stream)
        self._read_launch()
        call(driver.cuStreamSynchronize, self._stream)
        got = ctypes.c_uint32()
        call(driver.cuMemcpyDtoH, ctypes.addressof(got), self._sum, 4)
        expected = self._flush_bytes // 4 * _PROOF_WORD & 0xFFFFFFFF
        if got.value != expected:
            raise CudaFault("WRONG_PROOF", f"a known kernel gave {got.value:#x} instead of {expected:#x}")

    def _prove_clock(self) -> None:
        """Events must read a known wait as no shorter than it is, nor longer than the host finds it."""
        start, end = self._events
        stream = self._stream
        for _ in range(_PROOF_TRIES):
            began = time.perf_counter_ns()
            call(driver.cuEventRecord, start, stream)
            self._launch_spin(_PROOF_NS)
            call(driver.cuEventRecord, end, stream)
            call(driver.cuStreamSynchronize, stream)
            host_us = (time.perf_counter_ns() - began) / 1000.0
            event_us = float(call(driver.cuEventElapsedTime, start, end)) * 1000.0
            if event_us >= _PROOF_NS / 1000.0 - _PROOF_SLACK_US and event_us <= host_us + _PROOF_SLACK_US:
                return
        raise CudaFault(
            "WRONG_PROOF", f"events read {event_us:.1f} us for a wait of {_PROOF_NS / 1000:.0f} us"
        )

    def batch(self, runs: Sequence[Sequence[Callable[[], None]]], flush: bool, spin_ns: int) -> bool:
        """Runs back to back behind one busy kernel, each on a cold cache, and everything synchronised.

        True if the GPU had to wait for the host: it caught up before all was queued.
        """
        start = self._events[0]
        call(driver.cuCtxSynchronize)
        self._launch_spin(spin_ns)
        call(driver.cuEventRecord, start, self._stream)
        for steps in runs:
            if flush:
                self._scrub_launch()
                self._read_launch()
            for step in steps:
                step()
        exposed = driver.cuEventQuery(start)[0] == driver.CUresult.CUDA_SUCCESS
        call(driver.cuCtxSynchronize)
        return bool(exposed)

    def time(
        self, steps: Sequence[Callable[[], None]], flush: bool, spin_ns: int, profile: bool = False
    ) -> Ran:
        """One run: scrub, cold cache, busy queue, start, the plan's operations, end, everything synchronised."""
        stream = self._stream
        start, end = self._events
        if flush:
            call(driver.cuCtxResetPersistingL2Cache)
            self._scrub_launch()
            self._read_launch()
            call(driver.cuStreamSynchronize, stream)
        began = time.perf_counter_ns()
        self._launch_spin(spin_ns)
        call(driver.cuEventRecord, start, stream)
        if profile:
            call(driver.cuProfilerStart)
        for step in steps:
            step()
        if profile:
            call(driver.cuProfilerStop)
        # If the GPU has passed the start already, it may have waited for the host inside the window.
        exposed = driver.cuEventQuery(start)[0] == driver.CUresult.CUDA_SUCCESS
        call(driver.cuEventRecord, end, stream)
        call(driver.cuCtxSynchronize)
        host_ns = time.perf_counter_ns() - began - spin_ns
        milliseconds = float(call(driver.cuEventElapsedTime, start, end))
        return Ran(milliseconds * 1000.0, host_ns / 1000.0, bool(exposed))

    def _launch_spin(self, nanoseconds: int) -> None:
        cell = ctypes.c_uint64(nanoseconds)
        pointer = (ctypes.c_void_p * 1)(ctypes.addressof(cell))
        call(
            driver.cuLaunchKernel,
            self._spin, 1, 1, 1, 32, 1, 1, 0, self._stream, ctypes.addressof(pointer), 0,
        )  # fmt: skip


def _try_limit(limit: Any, value: int) -> None:
    """Set a context limit; a device without that limit has nothing to guard."""
    try:
        call(driver.cuCtxSetLimit, limit, value)
    except CudaFault:
        return
