"""The oracle: a torch process that makes inputs from secret seeds and judges every output.

``python -m kb_env.gpu.oracle --channel fd:N --device I --mirror FD``. It maps the runner's arena
(CUDA IPC, the runner exports) or, where IPC is refused, a host mirror of it. Expected results and
the seeds they come from stay in this process and this CUDA context, where no candidate code runs.
"""

from __future__ import annotations

import argparse
import mmap

import torch

from kb_env.gpu.layout import gaps
from kb_env.gpu.loosened import as_exposed, close_enough, expose
from kb_env.gpu.protocol import (
    Arm,
    Attach,
    ChannelClosed,
    Check,
    Checked,
    Content,
    Copied,
    CudaFault,
    Detach,
    Done,
    Draw,
    Drawn,
    Fail,
    Lay,
    Message,
    Pose,
    Region,
    open_channel,
)
from kb_env.gpu.verdicts import Kernels, can_judge
from kb_env.numerics import Expected, Reference
from kb_env.types import KbError, Task


class _Mapped:
    """Device memory of another process, for torch.as_tensor."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class Arena:
    """The runner's arena as a flat tensor of bytes on the GPU.

    With a handle the tensor is the runner's own memory; without one it is a copy that ``push`` and
    ``pull`` carry through the host mirror.
    """

    def __init__(self, handle: bytes, nbytes: int, mirror: int, device: str) -> None:
        self._address: int | None = None
        self._mirror = None if handle else mirror
        self.nbytes = nbytes
        if handle:
            from kb_env.gpu.driver import map_shared  # not needed, and not there, where nothing is mapped

            self._address = map_shared(handle)
            self.bytes = torch.as_tensor(_Mapped(self._address, nbytes), device=device)
        else:
            self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=device)

    def push(self, used: int) -> None:
        """Make what was written visible to the runner."""
        if self._mirror is not None:
            with mmap.mmap(self._mirror, self.nbytes) as view:
                torch.frombuffer(view, dtype=torch.uint8, count=used).copy_(self.bytes[:used])
        _wait()

    def pull(self, used: int) -> None:
        """See what the runner's last run left."""
        if self._mirror is not None:
            with mmap.mmap(self._mirror, self.nbytes) as view:
                self.bytes[:used].copy_(torch.frombuffer(view, dtype=torch.uint8, count=used))

    def close(self) -> None:
        """Unmap; a runner that died took the memory's content, not this mapping, with it."""
        _wait()
        del self.bytes
        if self._address is not None:
            from kb_env.gpu.driver import unmap_shared

            unmap_shared(self._address)


def _wait() -> None:
    """Until the GPU has done all that this process asked of it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Laid:
    """Views of the arena for one layout: guard bands, what is poisoned, inputs and outputs.

    With ``kernels``, also tables of where the guard bands and the poison go.
    """

    def __init__(self, arena: Arena, task: Task, message: Lay, kernels: Kernels | None) -> None:
        self.regions = message.regions
        self.used = message.used
        self.slot = message.slot
        self.spans = spans = gaps(message.regions, message.used, message.start)
        self.guards = [view for a, b in spans for view in _views(arena.bytes, a, b)]
        self.poisoned: list[torch.Tensor] = []
        self.inputs: list[tuple[Region, torch.Tensor]] = []
        self.outputs: dict[str, torch.Tensor] = {}
        cases = {case.name: case for case in (*task.check, *task.bench)}
        arguments = {argument.name: argument for argument in task.arguments}
        for region in message.regions:
            span = arena.bytes[region.offset : region.offset + region.nbytes]
            if region.kind in ("input", "inout"):
                self.inputs.append((region, _words(span)))
            else:
                self.poisoned += _views(arena.bytes, region.offset, region.offset + region.nbytes)
            if region.kind in ("output", "inout"):
                argument = arguments[region.name]
                shape = argument.dims(cases[message.case].sizes)
                self.outputs[region.name] = span.view(getattr(torch, argument.dtype)).view(shape)
        if kernels is not None:
            base = arena.bytes.data_ptr()
            self.guard_table = kernels.table([(base + a, b - a) for a, b in spans])
            poisoned = [r for r in message.regions if r.kind not in ("input", "inout")]
            self.poison_table = kernels.table([(base + r.offset, r.nbytes) for r in poisoned])


_NOTHING = Expected({}, {}, {})


class Oracle:
    """State of one evaluation: task, arena, current content, and what was armed last."""

    def __init__(self, device: str, mirror: int) -> None:
        self._device = device
        torch.zeros(1, device=device)
        # The reference runs in float64; float32 parts of it must not fall to TF32.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._kernels = Kernels(device) if device.startswith("cuda") else None
        self._mirror = mirror
        self._task: Task | None = None
        self._reference: Reference | None = None
        #: kept over evaluations, with what they measured of the library's own error
        self._references: dict[str, Reference] = {}
        self._arena: Arena | None = None
        self._laid: dict[int, Laid] = {}
        #: what was armed, by layout; ``_last`` is the last one's
        self._armed: dict[int, Arm] = {}
        self._last = -1
        #: inputs and expected outputs by slot
        self._contents: dict[int, tuple[dict[str, torch.Tensor], Expected]] = {}

    def answer(self, message: Message) -> Message:
        """Do what one request asks."""
        if isinstance(message, Check):
            return self.check(message)
        if isinstance(message, Draw):
            return self.draw(message)
        if isinstance(message, Arm):
            self.arm(message)
        elif isinstance(message, Lay):
            assert self._task is not None
            self._laid[message.layout] = Laid(self._ready_arena(), self._task, message, self._kernels)
        elif isinstance(message, Content):
            self.content(message)
        elif isinstance(message, Pose):
            self._task, key = message.task, message.task.key
            if key not in self._references:
                self._references[key] = Reference(message.task)
            self._reference = self._references[key]
        elif isinstance(message, Attach):
            self.detach()
            self._arena = Arena(message.handle, message.nbytes, self._mirror, self._device)
        elif isinstance(message, Detach):
            self.detach()
        else:
            raise KbError(f"an oracle does not understand {type(message).__name__}")
        return Done()

    def detach(self) -> None:
        arena, self._arena = self._arena, None
        self._laid, self._armed, self._contents, self._last = {}, {}, {}, -1
        if arena is not None:
            arena.close()

    def content(self, message: Content) -> None:
        """New inputs and their expected outputs, in this process's own memory."""
        assert self._task is not None and self._reference is not None
        cases = {case.name: case for case in (*self._task.check, *self._task.bench)}
        case = cases[message.case]
        if message.slot == 0:
            self._contents.clear()
        inputs = self._reference.inputs(case, message.seed, self._device)
        self._contents[message.slot] = inputs, self._reference.expected(case, inputs)

    def draw(self, message: Draw) -> Drawn:
        """Inputs as bytes; no expected output belongs to them."""
        assert self._task is not None and self._reference is not None
        case = next(case for case in self._task.check if case.name == message.case)
        inputs = self._reference.inputs(case, message.seed, self._device)
        raw = {name: tensor.contiguous().view(-1).view(torch.uint8).cpu() for name, tensor in inputs.items()}
        return Drawn(tuple((name, data.numpy().tobytes()) for name, data in raw.items()))

    def arm(self, message: Arm) -> None:
        """Guard bytes between buffers, poison in outputs and workspaces, this content's inputs."""
        laid = self._laid[message.layout]
        self._armed[message.layout], self._last = message, message.layout
        guarded = message.guard >= 0
        if self._kernels is not None:
            if guarded:
                self._kernels.fill(laid.guard_table, message.guard)
            self._kernels.fill(laid.poison_table, message.poison)
        else:
            for view in laid.guards if guarded else ():
                view.fill_(_repeated(view, message.guard))
            for view in laid.poisoned:
                view.fill_(_repeated(view, message.poison))
        for region, view in laid.inputs:
            view.copy_(self._raw(region, laid.slot))
        if message.expose and laid.outputs:
            expose(self._ready_arena().bytes, laid.regions, self._contents[laid.slot][1], laid.outputs)
        self._ready_arena().push(laid.used)

    def check(self, message: Check) -> Checked:
        """Judge the last run: guard bands, then inputs, then every output element."""
        layout = self._last if message.layout < 0 else message.layout
        if layout not in self._armed:
            raise KbError("nothing was armed, so there is nothing to check")
        laid, armed = self._laid[layout], self._armed[layout]
        self._ready_arena().pull(laid.used)
        worst = self._quickly(laid, armed, message)
        if worst is not None:
            return Checked(True, None, "", worst if message.values else None)
        guards = laid.guards if message.guards else []
        inputs = [pair for pair in laid.inputs if pair[0].kind == "input" and message.inputs]
        bad = [(view != _repeated(view, armed.guard)).any() for view in guards]
        bad += [(view != self._raw(region, laid.slot)).any() for region, view in inputs]
        flags = torch.stack(bad).tolist() if bad else []
        if any(flags[: len(guards)]):
            return self._guard_fault(laid, armed.guard)
        if any(flags):
            name = inputs[flags.index(True) - len(guards)][0].name
            return Checked(False, "input-changed", f"the program wrote to its input {name}", None)
        return self._values(laid, armed.poison, message) if message.values else Checked(True, None, "", None)

    def _quickly(self, laid: Laid, armed: Arm, message: Check) -> float | None:
        """The worst error if all is plainly well, None if the slow path has to look."""
        if self._kernels is None or not (message.numeric and message.apart):
            return None
        expected, outputs = _NOTHING, {}
        if message.values and laid.outputs:
            expected, outputs = self._contents[laid.slot][1], laid.outputs
            if not can_judge(outputs, expected):
                return None
        inputs = [pair for pair in laid.inputs if pair[0].kind == "input" and message.inputs]
        return self._kernels.all_well(
            laid.guard_table if message.guards else None,
            armed.guard,
            [(view, self._raw(region, laid.slot)) for region, view in inputs],
            expected,
            outputs,
        )

    def _values(self, laid: Laid, poison: int, message: Check) -> Checked:
        assert self._reference is not None
        expected = self._contents[laid.slot][1]
        if not message.apart:
            expected = as_exposed(self._ready_arena().bytes, laid.regions, expected, laid.outputs)
        compare = self._reference.compare if message.numeric else close_enough
        found = compare(expected, laid.outputs)
        if found.ok:
            return Checked(True, None, "", float(found.worst))
        fault, told = found.fault, found.message
        for region in laid.regions:
            if region.kind == "output" and region.nbytes:
                output = laid.outputs[region.name]
                raw = output.view(-1).view(torch.uint8).view(-1, output.element_size())
                left = int((raw == poison).all(dim=1).sum())
                if left:
                    fault = "unwritten"
                    told = f"{left} of {len(raw)} elements of {region.name} were not written; {told}"
        return Checked(False, fault, told, float(found.worst))

    def _guard_fault(self, laid: Laid, guard: int) -> Checked:
        """Say where the first damaged guard byte lies."""
        arena = self._ready_arena().bytes
        for start, end in laid.spans:
            places = (arena[start:end] != guard).nonzero()
            if len(places):
                place = start + int(places[0])
                break
        before = [region for region in laid.regions if region.offset + region.nbytes <= place]
        if not laid.regions:
            where = "far behind every buffer"
        elif before:
            where = f"{place - before[-1].offset - before[-1].nbytes} bytes past the end of {before[-1].name}"
        else:
            where = f"{laid.regions[0].offset - place} bytes before {laid.regions[0].name}"
        return Checked(False, "guard", f"out-of-bounds write {where}", None)

    def _ready_arena(self) -> Arena:
        if self._arena is None:
            raise KbError("the oracle has no arena: attach one first")
        return self._arena

    def _raw(self, region: Region, slot: int) -> torch.Tensor:
        """The oracle's own copy of an input, as words."""
        return _words(self._contents[slot][0][region.name].view(-1).view(torch.uint8))


def _words(data: torch.Tensor) -> torch.Tensor:
    """Bytes as the widest integers that their number allows: several times faster to fill and compare."""
    return data.view(torch.int64) if data.numel() % 8 == 0 else data


def _views(data: torch.Tensor, start: int, end: int) -> list[torch.Tensor]:
    """Bytes [start, end) as 8-byte words, with single bytes at the ragged ends; no empty views."""
    first, last = -(-start // 8) * 8, end // 8 * 8
    if first >= last:
        return [data[start:end]] if start < end else []
    parts = [data[start:first], data[first:last].view(torch.int64), data[last:end]]
    return [part for part in parts if part.numel()]


def _repeated(view: torch.Tensor, byte: int) -> int:
    """The element of a view whose every byte is ``byte``."""
    if view.dtype is torch.uint8:
        return byte
    return int.from_bytes(bytes([byte]) * 8, "little", signed=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Makes inputs and judges outputs for the GPU evaluator.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mirror", type=int, default=-1)
    options = parser.parse_args(arguments)
    channel = open_channel(options.channel)
    torch.cuda.set_device(options.device)
    try:
        oracle = Oracle("cuda", options.mirror)
        channel.send(Copied(torch.__version__))
        while True:
            try:
                with torch.inference_mode():
                    reply = oracle.answer(channel.receive())
            except (KbError, CudaFault, torch.OutOfMemoryError) as error:
                reply = Fail("oracle", type(error).__name__, str(error))
            channel.send(reply)
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
