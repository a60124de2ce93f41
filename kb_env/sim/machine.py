"""The machine: runs a launch plan's kernels from their PTX, on numpy memory, and counts what they do.

To be used inside a limited child process. Candidate code cannot reach memory other than its buffers,
but it decides how long a run takes (up to the budget).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kb_env.plan import Copy, Fill, Launch, LaunchPlan
from kb_env.sim import native
from kb_env.sim.compiled import (
    FIRST_SLOT,
    Kernel,
    addresses,
    compile_kernel,
    flat_kernel,
    keep,
    link,
    stored,
    symbols_of,
)
from kb_env.sim.counts import LaunchCounts
from kb_env.sim.findings import FAULTS, Finding, described, from_fault
from kb_env.sim.lower import GRID_SLOT, SLOT_SHIFT
from kb_env.sim.ptx import Module, PtxError, Variable, parse
from kb_env.store import Store
from kb_env.types import KbError, Status

DEFAULT_BUDGET = 2_000_000_000
#: What the largest GPUs allow a block and a thread, in bytes.
MAX_SHARED, MAX_LOCAL = 232_448, 524_288
RESIDENT_BLOCKS, COOPERATIVE_BLOCKS = 256, 4096
#: Instructions before other warps get their turn where blocks run side by side and may wait for one another.
WAVE_SLICE = 1024


class SimFault(Exception):
    """What a candidate's kernel did wrong: a status and one line that says where."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class KernelFacts:
    """Static facts of one kernel."""

    name: str
    parameter_bytes: tuple[int, ...]
    shared_bytes: int
    local_bytes: int
    opcodes: tuple[str, ...]


@dataclass
class _Loaded:
    """A kernel whose code is in this process."""

    kernel: Kernel
    engine: object
    address: int


class Machine:
    """A PTX module ready to run.

    ``cache`` is a folder for the runtime library (default: ~/.cache/kb-env); ``store`` keeps compiled
    kernels, if given: the PTX is then read only once one of them is not there. ``sanitize`` makes runs slower,
    and ``findings`` complete.
    """

    def __init__(
        self, ptx: str, cache: Path | None = None, store: Store | None = None, sanitize: bool = False
    ) -> None:
        self._ptx, self._store, self.sanitize = ptx, store, sanitize
        self._module: Module | None = None
        self.runtime = native.load(cache or native.default_cache())
        self.findings: list[Finding] = []
        self.text = ""
        self.lane_accesses = 0
        self._loaded: dict[str, _Loaded | SimFault] = {}
        if store is None:
            self.module  # noqa: B018 - a caller without a store learns at once that the PTX is bad

    @property
    def module(self) -> Module:
        """The parsed module; raises SimFault (REFUSED) if it cannot be read."""
        if self._module is None:
            try:
                self._module = parse(self._ptx)
            except PtxError as error:
                raise SimFault(Status.REFUSED, str(error)) from error
        return self._module

    @property
    def kernels(self) -> dict[str, KernelFacts]:
        """Static facts by kernel name."""
        found = {}
        for function in self.module.functions.values():
            if function.entry:
                try:
                    flat = flat_kernel(self.module, function.name)
                except PtxError as error:
                    raise SimFault(Status.REFUSED, str(error)) from error
                opcodes = tuple(item.text for block in flat.blocks for item in block.instrs)
                sizes = tuple(item.nbytes for item in function.params)
                found[function.name] = KernelFacts(
                    function.name, sizes, flat.shared_bytes, flat.local_bytes, opcodes
                )
        return found

    @property
    def symbols(self) -> tuple[Variable, ...]:
        """Module variables in global and constant memory."""
        for item in self._loaded.values():
            if isinstance(item, _Loaded):
                return item.kernel.symbols
        return symbols_of(self.module)

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the module's device functions."""
        for item in self._loaded.values():
            if isinstance(item, _Loaded):
                return item.kernel.functions
        return tuple(name for name, item in self.module.functions.items() if not item.entry)

    def compile(self, name: str) -> _Loaded:
        """Code of one kernel, from the store or compiled now.

        Raises:
            SimFault: REFUSED for what the engine does not support.
        """
        if name not in self._loaded:
            try:
                self._loaded[name] = self._load(name)
            except SimFault as fault:
                self._loaded[name] = fault
        found = self._loaded[name]
        if isinstance(found, SimFault):
            raise found
        return found

    def _load(self, name: str) -> _Loaded:
        kernel = stored(self._store, self._ptx, name, self.sanitize) if self._store is not None else None
        if kernel is None:
            try:
                kernel = compile_kernel(self.module, name, self.sanitize)
            except PtxError as error:
                raise SimFault(Status.REFUSED, str(error)) from error
            if self._store is not None:
                keep(self._store, self._ptx, kernel)
        engine, address = link(kernel, self.runtime)
        return _Loaded(kernel, engine, address)

    # -- running -----------------------------------------------------------------------------------

    def run(
        self,
        plan: LaunchPlan,
        memory: Sequence[np.ndarray | None],
        sample_blocks: int | None = None,
        budget: int = DEFAULT_BUDGET,
        waves: int = 0,
        given: Sequence[bool] | None = None,
    ) -> list[LaunchCounts]:
        """Execute a plan's operations in order on ``memory`` (uint8, one per plan buffer; changed in place).

        ``sample_blocks`` runs only that many blocks a launch, picked by the golden ratio. ``budget`` is the
        number of warp instructions a launch may execute. ``waves`` runs that many blocks side by side, the last
        one first (0: one after another where they let themselves). ``given`` says which buffers hold data from
        the start, for the sanitizer (default: all arguments).

        Raises:
            SimFault: for anything the candidate's kernels did wrong.
        """
        for launch in plan.launches:
            self.compile(launch.kernel)
        session = _Session(self, plan, memory, given)
        session.waves = waves
        counts = []
        for operation in plan.operations:
            if isinstance(operation, Launch):
                counts.append(session.launch(operation, sample_blocks, budget))
            elif isinstance(operation, Fill):
                session.buffers[operation.buffer][operation.offset :][: operation.nbytes] = operation.byte
                session.define(operation.buffer, operation.offset, operation.nbytes)
            elif isinstance(operation, Copy):
                source = session.buffers[operation.source][operation.source_offset :][
                    : operation.nbytes
                ].copy()
                session.buffers[operation.target][operation.target_offset :][: operation.nbytes] = source
                session.define_copy(operation)
            else:
                data = np.frombuffer(operation.packed(session.address), dtype=np.uint8)
                session.buffers[operation.target][operation.offset :][: len(data)] = data
                session.define(operation.target, operation.offset, len(data))
        return counts


def pick_blocks(total: int, count: int) -> list[int]:
    """``count`` distinct block numbers spread over ``total`` by the golden ratio, in order."""
    picked: dict[int, None] = {}
    step = 0.6180339887498949
    position = 0
    while len(picked) < min(count, total):
        picked[int((0.5 + position * step) % 1.0 * total)] = None
        position += 1
        if position > 50 * count:
            for index in range(total):
                if len(picked) < min(count, total):
                    picked[index] = None
    return sorted(picked)


class _Session:
    """Memory of one plan: its buffers and the module's symbols, at their virtual addresses."""

    waves = 0

    def __init__(
        self,
        machine: Machine,
        plan: LaunchPlan,
        memory: Sequence[np.ndarray | None],
        given: Sequence[bool] | None,
    ) -> None:
        self.machine, self.plan = machine, plan
        self.defined: dict[int, np.ndarray] = {}  # by slot: of each byte whether it was written
        self.slots: dict[int, tuple[np.ndarray, str, bool]] = {}
        self.address: list[int] = []
        self.buffers: list[np.ndarray] = []
        symbols = machine.symbols
        self.symbol_addresses = addresses(symbols, machine.functions)
        named = {item.name: i for i, item in enumerate(symbols)}
        for i, item in enumerate(symbols):
            self.slots[FIRST_SLOT + i] = (self._initial(item), item.name, item.space == "global")
        following = FIRST_SLOT + len(symbols)
        for buffer, data in zip(plan.buffers, memory, strict=True):
            if buffer.kind == "symbol":
                if buffer.name not in named:
                    raise SimFault(Status.REFUSED, f"the module has no symbol {buffer.name}")
                slot = FIRST_SLOT + named[buffer.name]
                data = self.slots[slot][0]
            else:
                if data is None or data.dtype != np.uint8 or not data.flags.c_contiguous:
                    raise KbError(f"memory of buffer {buffer.name} must be a contiguous uint8 array")
                slot = following
                following += 1
                self.slots[slot] = (data, buffer.name or f"workspace {len(self.buffers)}", True)
            if slot >= native.SLOTS:
                raise SimFault(Status.REFUSED, "too many buffers")
            self.buffers.append(data)
            self.address.append(slot << SLOT_SHIFT)
            if machine.sanitize and buffer.kind != "symbol":
                whole = buffer.kind == "argument" if given is None else given[len(self.buffers) - 1]
                self.defined[slot] = np.full(data.nbytes + 1, int(whole), np.uint8)
        for i in range(len(symbols) if machine.sanitize else 0):
            self.defined[FIRST_SLOT + i] = np.ones(self.slots[FIRST_SLOT + i][0].nbytes + 1, np.uint8)

    def _initial(self, item: Variable) -> np.ndarray:
        data = np.zeros(item.nbytes, dtype=np.uint8)
        raw = bytearray(item.data)
        for offset, symbol, addend in item.addresses:
            value = self.symbol_addresses.get(symbol)
            if value is None:
                raise SimFault(
                    Status.REFUSED, f"{item.name} holds the address of {symbol}, which is not a variable"
                )
            raw[offset : offset + 8] = (value + addend).to_bytes(8, "little")
        data[: len(raw)] = np.frombuffer(bytes(raw), dtype=np.uint8)
        return data

    def define(self, buffer: int, offset: int, nbytes: int) -> None:
        """These bytes are written from outside a kernel."""
        if self.machine.sanitize:
            self.defined[self.address[buffer] >> SLOT_SHIFT][offset : offset + nbytes] = 1

    def define_copy(self, copy: Copy) -> None:
        if self.machine.sanitize:
            source = self.defined[self.address[copy.source] >> SLOT_SHIFT][copy.source_offset :]
            target = self.defined[self.address[copy.target] >> SLOT_SHIFT][copy.target_offset :]
            target[: copy.nbytes] = source[: copy.nbytes].copy()

    def parameters(self, launch: Launch, kernel: Kernel) -> np.ndarray:
        """The parameter block: each value at its aligned offset, pointers filled in."""
        if len(launch.parameters) != len(kernel.params):
            raise SimFault(
                Status.REFUSED,
                f"{launch.kernel} takes {len(kernel.params)} parameters, not {len(launch.parameters)}",
            )
        offsets, total = [], 0
        for item, data in zip(kernel.params, launch.parameters, strict=True):
            if len(data) != item.nbytes:
                raise SimFault(
                    Status.REFUSED, f"a parameter of {launch.kernel} has {item.nbytes} bytes, not {len(data)}"
                )
            total = -(-total // item.align) * item.align
            offsets.append(total)
            total += item.nbytes
        block = np.zeros(total + 64, dtype=np.uint8)
        for offset, data in zip(offsets, launch.parameters, strict=True):
            block[offset : offset + len(data)] = np.frombuffer(data, dtype=np.uint8)
        for pointer in launch.pointers:
            where = offsets[pointer.parameter] + pointer.offset
            value = (self.address[pointer.buffer] + pointer.addend) & ((1 << 64) - 1)
            block[where : where + 8] = np.frombuffer(value.to_bytes(8, "little"), dtype=np.uint8)
        return block

    def launch(self, launch: Launch, sample: int | None, budget: int) -> LaunchCounts:
        machine = self.machine
        loaded = machine.compile(launch.kernel)
        code = loaded.kernel
        run = native.Run()
        keep: list[np.ndarray] = []

        def array(count: int, dtype: type = np.uint64) -> np.ndarray:
            keep.append(np.zeros(count, dtype=dtype))
            return keep[-1]

        bitmaps: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for slot, (data, _, writable) in self.slots.items():
            read, written = array(data.nbytes // 2048 + 2), array(data.nbytes // 2048 + 2)
            bitmaps[slot] = (read, written)
            stamps = array(data.nbytes // 32 + 1).ctypes.data if sample is not None else None
            defined = self.defined[slot].ctypes.data if slot in self.defined else None
            run.slots[slot] = native.Slot(
                data.ctypes.data,
                data.nbytes,
                read.ctypes.data,
                written.ctypes.data,
                int(writable),
                defined,
                stamps,
            )
        params = self.parameters(launch, code)
        run.slots[3] = native.Slot(params.ctypes.data, params.nbytes - 64, None, None, 0, None, None)
        grid_memory = array(512)
        run.slots[GRID_SLOT] = native.Slot(
            grid_memory.ctypes.data, grid_memory.nbytes, None, None, 1, None, None
        )
        if sample is not None:
            run.hot = array(2 * native.HOT_WORDS).ctypes.data
            # Warps take turns at every loop iteration, as on hardware, so that reuse distances mean something.
            run.slice, run.rounds = 1, 4096
        block_counts, sites = array(2 * len(code.blocks)), (native.SiteCount * (len(code.sites) + 1))()
        run.kernel, run.params, run.param_bytes = loaded.address, params.ctypes.data, params.nbytes
        run.block_counts, run.sites = block_counts.ctypes.data, ctypes.addressof(sites)
        run.register_bytes, run.local_bytes, run.zero_registers = (
            code.register_bytes,
            code.local_bytes,
            int(code.zero),
        )
        run.grid, run.block = (native.u32 * 3)(*launch.grid), (native.u32 * 3)(*launch.block)
        run.cluster = (native.u32 * 3)(*(launch.cluster or (1, 1, 1)))
        run.shared_bytes = code.shared_bytes + launch.shared_bytes
        if run.shared_bytes > MAX_SHARED or code.local_bytes > MAX_LOCAL:
            raise SimFault(
                Status.CRASHED,
                f"kernel {launch.kernel} asks for {run.shared_bytes} bytes of shared memory (at most {MAX_SHARED}) "
                f"and {code.local_bytes} of local memory a thread (at most {MAX_LOCAL})",
            )
        run.budget, run.waves, run.sanitize = budget, self.waves, int(machine.sanitize)
        total = launch.grid[0] * launch.grid[1] * launch.grid[2]
        cluster = math.prod(launch.cluster or (1, 1, 1))
        if cluster > 16 or any(n % k for n, k in zip(launch.grid, launch.cluster or (1, 1, 1), strict=True)):
            raise SimFault(
                Status.CRASHED, f"clusters of {launch.cluster} do not divide the grid {launch.grid}"
            )
        sampled = sample is not None and sample < total
        picks = pick_blocks(total // cluster, max(1, (sample or 0) // cluster)) if sampled else []
        chosen = array(len(picks) + 1)
        chosen[: len(picks)] = picks
        run.picks, run.pick_count = chosen.ctypes.data, len(picks)
        resident = (
            max(RESIDENT_BLOCKS, min(total, COOPERATIVE_BLOCKS)) if launch.cooperative else RESIDENT_BLOCKS
        )
        if launch.cooperative and not picks:
            run.waves = resident
        if run.waves:
            run.slice = WAVE_SLICE
        findings, text = (native.FindingRecord * 64)(), array(1 << 16, np.uint8)
        run.findings, run.finding_room = ctypes.addressof(findings), 64
        run.text, run.text_room = text.ctypes.data, text.nbytes
        failed = machine.runtime.kb_run(ctypes.addressof(run), resident)
        machine.text += bytes(text[: run.text_used]).decode("utf-8", "replace")
        machine.lane_accesses += run.lane_accesses
        self._collect(launch, code, run, findings)
        if failed:
            raise self._fault(launch, code, run)
        return self._counts(
            launch, code, run, block_counts, sites, bitmaps, len(picks) * cluster or total, total
        )

    def _collect(self, launch: Launch, code: Kernel, run: native.Run, findings: ctypes.Array) -> None:
        for item in findings[: run.finding_count]:
            self.machine.findings.append(described(item, code, self._place, launch.grid))

    def _fault(self, launch: Launch, code: Kernel, run: native.Run) -> SimFault:
        item = run.fault
        status = Status.TIMED_OUT if item.kind in (4, 5) else Status.CRASHED
        where = f"kernel {launch.kernel}, block {tuple(item.block)}, thread {item.warp * 32 + item.lane}"
        what = FAULTS.get(item.kind, "fault")
        if item.site < len(code.sites):
            site = code.sites[item.site]
            place = f"line {site.source}" if site.source else f"PTX line {site.line}"
            where = f"{place}, {where}, {site.opcode}"
        if item.kind in (1, 2):
            what += f": {item.width} bytes at {self._place(item.address)}"
        self.machine.findings.append(from_fault(item, code, f"{what} ({where})"))
        return SimFault(status, f"{what} ({where})")

    def _place(self, address: int) -> str:
        slot, offset = address >> SLOT_SHIFT, address & ((1 << SLOT_SHIFT) - 1)
        if slot in (1, 2, 3):
            return f"offset {offset} of {('shared', 'local', 'parameter')[slot - 1]} memory"
        if slot + 1 in self.slots and offset >> (SLOT_SHIFT - 1):  # a little before a buffer's start
            return f"offset {offset - (1 << SLOT_SHIFT)} of buffer {self.slots[slot + 1][1]}"
        if slot in self.slots:
            data, name, _ = self.slots[slot]
            return f"offset {offset} of buffer {name} ({data.nbytes} bytes)"
        return f"address {address:#x}, which is in no buffer"

    def _counts(
        self, launch: Launch, code: Kernel, run: native.Run, blocks: np.ndarray, sites: ctypes.Array,
        bitmaps: dict[int, tuple[np.ndarray, np.ndarray]], ran: int, total: int,
    ) -> LaunchCounts:  # fmt: skip
        executions, lanes = blocks[0::2], blocks[1::2]
        mix: dict[str, int] = {}
        active = branches = groups = loads = 0
        extra: dict[str, float] = {}
        for i, block in enumerate(code.blocks):
            times = int(executions[i])
            branches += times * block.branches
            active += int(lanes[i]) * sum(block.mix.values())
            for name, number in block.mix.items():
                mix[name] = mix.get(name, 0) + times * number
            groups += times * len(block.loads)
            loads += times * sum(len(lines) for lines in block.loads)
            for name, value in block.extra.items():
                extra[name] = extra.get(name, 0.0) + times * value
        tally: dict[tuple[str, str], list[int]] = {}
        lines: dict[int, list[int]] = {}
        for site, count in zip(code.sites, sites, strict=False):
            space = "global" if site.space == "generic" else site.space
            sums = tally.setdefault((site.kind, space), [0, 0, 0, 0])
            for k, value in enumerate((count.requests, count.sectors, count.bytes, count.conflicts)):
                sums[k] += value
            if space == "global" and site.source and count.requests:
                line = lines.setdefault(site.source, [0, 0])
                line[0] += count.requests
                line[1] += count.sectors

        def of(kind: str, space: str) -> list[int]:
            return tally.get((kind, space), [0, 0, 0, 0])

        local = [a + b for a, b in zip(of("load", "local"), of("store", "local"), strict=True)]
        atomic = [sum(value[k] for (kind, _), value in tally.items() if kind == "atomic") for k in range(4)]
        footprint = {}
        for index, address in enumerate(self.address):
            read, written = bitmaps[address >> SLOT_SHIFT]
            footprint[index] = (_bits(read), _bits(written))
        load, store = of("load", "global"), of("store", "global")
        extra |= _extra(run, load, store, of("atomic", "shared"))
        extra |= _batches(code, executions, sites) if run.hot else {}
        return LaunchCounts(
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block,
            shared_bytes=int(run.shared_bytes),
            blocks_run=ran,
            blocks_total=total,
            warp_instructions=mix,
            active_lanes=active,
            branches=branches,
            divergent_branches=int(run.divergent_branches),
            barriers=int(run.barriers),
            global_load_requests=load[0],
            global_load_sectors=load[1],
            global_load_bytes=load[2],
            global_store_requests=store[0],
            global_store_sectors=store[1],
            global_store_bytes=store[2],
            shared_load_requests=of("load", "shared")[0],
            shared_load_wavefronts=of("load", "shared")[1],
            shared_store_requests=of("store", "shared")[0],
            shared_store_wavefronts=of("store", "shared")[1],
            local_requests=local[0],
            local_sectors=local[1],
            atomic_requests=atomic[0],
            atomic_sectors=atomic[1],
            atomic_conflicts=atomic[3],
            tensor_macs=sum(int(executions[i]) * block.macs for i, block in enumerate(code.blocks)),
            footprint=footprint,
            max_warp_instructions=int(run.max_warp),
            loads_in_flight=loads / groups if groups else 1.0,
            lines=tuple((line, values[0], values[1]) for line, values in sorted(lines.items())),
            extra=extra,
        )


def _batches(code: Kernel, executions: np.ndarray, sites: ctypes.Array) -> dict[str, float]:
    """Batches of global loads that warps waited for, and those among them with a cold load."""
    share = {
        site.line: count.cold / count.requests
        for site, count in zip(code.sites, sites, strict=False)
        if site.kind == "load" and count.requests
    }
    batches = cold = 0.0
    for i, block in enumerate(code.blocks):
        for lines in block.loads:
            batches += int(executions[i])
            cold += int(executions[i]) * max(share.get(line, 0.0) for line in lines)
    return {"load_batches": batches, "cold_batches": cold}


def _extra(run: native.Run, load: list[int], store: list[int], shared: list[int]) -> dict[str, float]:
    """Counters for the time model beside the named ones: see LaunchCounts.extra."""
    found = {
        "global_load_lines": load[3], "global_store_lines": store[3],
        "shared_atomic_requests": shared[0], "shared_atomic_passes": shared[1],
    }  # fmt: skip
    if run.hot:
        found["atomic_hottest"] = run.hot_most
        found["block_sectors"] = run.first_sectors
        total = 0
        for k, count in enumerate(run.reuse):
            total += count
            found[f"reuse_{k}"] = total
            found[f"distance_{k}"] = run.between[k]
    return {name: float(value) for name, value in found.items()}


def _bits(bitmap: np.ndarray) -> int:
    return int(np.unpackbits(bitmap.view(np.uint8)).sum())
