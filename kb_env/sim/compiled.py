"""Kernels of a PTX module as native code, and the disk cache of them.

Compiling reads the candidate's PTX but runs nothing of it. What comes out is a record: machine code
of one kernel as a relocatable object, and the facts that running and counting need. Records are kept
in the write-once store under the hash of the PTX, this engine's text, LLVM's version and the
processor's features, so that any number of processes share them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from kb_env.records import RecordError, pack, unpack
from kb_env.sim import (
    lower_async,
    lower_cvt,
    lower_float,
    lower_int,
    lower_matrix,
    lower_mem,
    lower_sync,
    lower_warp,
    native,
)
from kb_env.sim.classes import extra_counts, instruction_class, load_batches, tensor_macs
from kb_env.sim.flow import analyse, order_blocks
from kb_env.sim.ir import Block, Flat, flatten
from kb_env.sim.lower import CODE_SLOT, SLOT_SHIFT, Lowerer, Site
from kb_env.sim.ptx import Module, PtxError, Variable
from kb_env.store import Store
from kb_env.types import KbError, digest

#: Instruction families the engine has rules for.
LOWERINGS = (lower_int, lower_float, lower_cvt, lower_mem, lower_sync, lower_warp, lower_async, lower_matrix)
FIRST_SLOT = 16
#: What the text of these files says decides what a record holds.
_SOURCES = ("ptx", "ir", "flow", "lower", "classes", "cost", "compiled", "native")


@dataclass(frozen=True)
class BlockFacts:
    """What one execution of a basic block adds to the counters."""

    mix: Mapping[str, int]  # instructions by class
    loads: tuple[tuple[int, ...], ...]  # batches of global loads, as their PTX lines
    branches: int
    macs: int  # tensor multiply-adds
    extra: Mapping[str, float]
    line: int  # of the CUDA source, where it begins


@dataclass(frozen=True)
class Kernel:
    """One kernel, compiled. ``symbols`` are the module's variables, in the order of their addresses."""

    name: str
    params: tuple[Variable, ...]
    shared_bytes: int
    local_bytes: int
    register_bytes: int
    zero: bool  # whether registers may be read before they are written
    sites: tuple[Site, ...]
    blocks: tuple[BlockFacts, ...]
    symbols: tuple[Variable, ...]
    file: str
    helpers: tuple[str, ...]  # functions of the runtime that the code calls
    code: bytes
    sanitize: bool
    functions: tuple[str, ...]  # device functions, in the order of their addresses


@functools.cache
def version() -> str:
    """Hash of everything but the PTX that decides a record."""
    folder = Path(__file__).parent
    files = [p for p in folder.rglob("*") if p.suffix in (".py", ".h", ".cpp")]
    chosen = [p for p in sorted(files) if p.stem.startswith(_SOURCES) or p.parent != folder]
    tools = repr((llvmlite.__version__, llvm.llvm_version_info, native.host()))
    return digest(b"\0".join([*(p.read_bytes() for p in chosen), tools.encode()]))


def store_key(ptx: str, kernel: str, sanitize: bool) -> str:
    """Name of a kernel's record in the store."""
    return "simcode-" + digest("\0".join((version(), digest(ptx), kernel, str(int(sanitize)))))


def stored(store: Store, ptx: str, kernel: str, sanitize: bool = False) -> Kernel | None:
    """The record of a kernel that some process compiled before; None if there is none (or none readable)."""
    files = store.read(store_key(ptx, kernel, sanitize))
    if files is None or "kernel" not in files:
        return None
    try:
        found = unpack(Kernel, files["kernel"])
    except RecordError:
        return None
    return found if (found.name, found.sanitize) == (kernel, sanitize) else None


def keep(store: Store, ptx: str, kernel: Kernel) -> None:
    """Add a record to the store. A store that cannot be written is only a slower one."""
    try:
        store.write(store_key(ptx, kernel.name, kernel.sanitize), {"kernel": pack(kernel)})
    except KbError:
        return


def addresses(symbols: tuple[Variable, ...], functions: tuple[str, ...]) -> dict[str, int]:
    """Virtual address of each variable and each device function of a module."""
    code = {name: CODE_SLOT << SLOT_SHIFT | (i + 1) << 4 for i, name in enumerate(functions)}
    return code | {item.name: (FIRST_SLOT + i) << SLOT_SHIFT for i, item in enumerate(symbols)}


def symbols_of(module: Module) -> tuple[Variable, ...]:
    return tuple(item for item in module.variables.values() if item.space in ("global", "const"))


def flat_kernel(module: Module, kernel: str) -> Flat:
    """One kernel with its calls inlined.

    Raises:
        PtxError: if there is no such kernel, or it uses what the engine does not support.
    """
    function = module.functions.get(kernel)
    if function is None or not function.entry:
        raise PtxError(f"the module has no kernel {kernel}")
    return flatten(module, function)


def compile_kernel(module: Module, kernel: str, sanitize: bool = False) -> Kernel:
    """Native code of one kernel, with what the sanitizer needs to know if asked for.

    Raises:
        PtxError: for what the engine does not support.
    """
    flat = flat_kernel(module, kernel)
    order_blocks(flat)
    flow = analyse(flat)
    sites: list[Site] = []
    symbols = symbols_of(module)
    functions = tuple(name for name, item in module.functions.items() if not item.entry)
    low = Lowerer(flat, flow, addresses(symbols, functions), sites, sanitize)
    body = low.function("kernel")
    text = "\n".join([body, *low.declared.values(), '!0 = !{!"branch_weights", i32 1, i32 100000}'])
    return Kernel(
        kernel, tuple(flat.params), flat.shared_bytes, flat.local_bytes, low.register_bytes, bool(flow.live_in[0]),
        tuple(sites), tuple(_facts(block) for block in flat.blocks), symbols,
        next(iter(module.files.values()), ""), tuple(name for name in low.declared if name.startswith("kb_")),
        _object(text), sanitize, functions,
    )  # fmt: skip


def _facts(block: Block) -> BlockFacts:
    mix: dict[str, int] = {}
    for item in [*block.instrs, *([block.ender] if block.ender else [])]:
        name = instruction_class(item)
        mix[name] = mix.get(name, 0) + 1
    return BlockFacts(
        mix,
        tuple(load_batches(block)),
        int(block.end in ("branch", "brx")),
        sum(tensor_macs(item) for item in block.instrs),
        {name: float(value) for name, value in extra_counts(block).items()},
        next(
            (item.source for item in [*block.instrs, *([block.ender] if block.ender else [])] if item.source),
            0,
        ),
    )


def _target_machine() -> llvm.TargetMachine:
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    except RuntimeError:
        pass  # this llvmlite initialises itself
    name, features = native.host()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=1, jit=True
    )


def _object(text: str) -> bytes:
    machine = _target_machine()
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:  # a fault of the lowering: this program cannot be run
        raise PtxError(f"the engine could not translate the kernel: {str(error)[:300]}") from error
    return bytes(machine.emit_object(module))


def link(kernel: Kernel, runtime: ctypes.CDLL) -> tuple[object, int]:
    """The kernel's code in this process: the engine that holds it, and its address.

    Raises:
        KbError: if the runtime lacks a function that the code calls.
    """
    machine = _target_machine()
    for name in kernel.helpers:
        try:
            function = getattr(runtime, name)
        except AttributeError:
            raise KbError(f"the simulator's runtime has no function {name}") from None
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(kernel.code))
    engine.finalize_object()
    return engine, engine.get_function_address("kernel")
