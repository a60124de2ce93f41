"""The runner: a process of trusted code that replays launch plans on the GPU and times them.

``python -m kb_env.gpu.runner --channel fd:N --device I --mirror FD``. It knows no seed and no
expected result; it never reads an output. A standby runner waits with its context open and ends
for good after the first CUDA error, or when the controller hangs up.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
from typing import Any

from kb_env.gpu.driver import call, driver, facts, open_device
from kb_env.gpu.harness import Harness
from kb_env.gpu.protocol import (
    Batch,
    Batched,
    Bind,
    Bound,
    ChannelClosed,
    CudaFault,
    Detach,
    Done,
    Fail,
    Load,
    Message,
    Prove,
    Ran,
    Ready,
    Reserve,
    Reserved,
    Run,
    open_channel,
)
from kb_env.gpu.replay import BoundPlan, Module, Pinned
from kb_env.types import KbError


class Runner:
    """One context, one arena, up to two modules (0 candidate, 1 baseline)."""

    def __init__(self, index: int, mirror: int) -> None:
        device = open_device(index)
        self.facts = facts(device)
        self._stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        self._harness = Harness(self.facts, self._stream)
        self._harness.prove()
        self._mirror = mirror
        self._arena = 0
        self._arena_bytes = 0
        self._images: dict[int, bytes] = {}
        self._uploads: dict[bytes, Pinned] = {}
        self._modules: dict[int, Module] = {}
        self._binds: dict[tuple[int, str], Bind] = {}
        self._bound: dict[tuple[int, str], BoundPlan] = {}

    def answer(self, message: Message) -> Message:
        """Do what one request asks."""
        if isinstance(message, Run):
            return self.run(message)
        if isinstance(message, Batch):
            plans = [self.bound(message.side, case).steps for case in message.cases]
            steps = [plans[i % len(plans)] if plans else () for i in range(message.runs)]
            return Batched(self._harness.batch(steps, message.flush, message.spin_ns))
        if isinstance(message, Prove):
            self._harness.prove()
            return Done()
        if isinstance(message, Reserve):
            return self.reserve(message)
        if isinstance(message, Load):
            self.load(message.side, message.image)
            return Done()
        if isinstance(message, Bind):
            self._binds[message.side, message.case] = message
            return Bound(self.bound(message.side, message.case).launches)
        raise KbError(f"a runner does not understand {type(message).__name__}")

    def reserve(self, message: Reserve) -> Reserved:
        if self._arena:
            raise KbError("the arena is already reserved")
        self._arena = int(call(driver.cuMemAlloc, message.nbytes))
        self._arena_bytes = message.nbytes
        if not message.share:
            return Reserved(b"")
        try:
            handle = call(driver.cuIpcGetMemHandle, self._arena)
        except CudaFault:
            return Reserved(b"")  # no IPC in this container: the host mirror takes its place
        return Reserved(bytes(handle.reserved))

    def load(self, side: int, image: bytes) -> None:
        """Load, or load afresh: all that earlier runs left in the module's globals is gone."""
        if side in self._modules:
            self._modules.pop(side).unload()
        for key in [key for key in self._bound if key[0] == side]:
            del self._bound[key]
        self._images[side] = image
        self._modules[side] = Module(image, self._uploads)

    def bound(self, side: int, case: str) -> BoundPlan:
        if (side, case) not in self._bound:
            bind = self._binds[side, case]
            bases: list[int | None] = []
            for offset, buffer in zip(bind.offsets, bind.plan.buffers, strict=True):
                if offset + buffer.nbytes > self._arena_bytes:
                    raise KbError(f"{buffer.name} lies outside the arena")
                bases.append(None if offset < 0 else self._arena + offset)
            self._bound[side, case] = self._modules[side].bind(bind.plan, bases, self._stream)
        return self._bound[side, case]

    def run(self, message: Run) -> Ran:
        if message.reload:
            self.load(message.side, self._images[message.side])
        plan = self.bound(message.side, message.case)
        if message.mirror:
            self._copy(message.mirror, upload=True)
        ran = self._harness.time(plan.steps, message.flush, message.spin_ns, message.profile)
        if message.mirror:
            self._copy(message.mirror, upload=False)
        return ran

    def _copy(self, nbytes: int, upload: bool) -> None:
        """Between arena and host mirror, where the oracle cannot map the arena."""
        with mmap.mmap(self._mirror, nbytes) as view:
            address = _address(view)
            if upload:
                call(driver.cuMemcpyHtoD, self._arena, address, nbytes)
            else:
                call(driver.cuMemcpyDtoH, address, self._arena, nbytes)


def _address(view: mmap.mmap) -> int:
    first = ctypes.c_char.from_buffer(view)
    address = ctypes.addressof(first)
    del first  # an exported buffer would keep the map from closing
    return address


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description="Replays launch plans for the GPU evaluator.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mirror", type=int, default=-1)
    options = parser.parse_args(arguments)
    channel = open_channel(options.channel)
    try:
        runner = Runner(options.device, options.mirror)
        channel.send(Ready(runner.facts))
        while not isinstance(message := channel.receive(), Detach):
            channel.send(runner.answer(message))
        channel.send(Done())
    except CudaFault as fault:
        # The context may be beyond use: report and end, never go on.
        channel.send(Fail("cuda", fault.name, fault.message))
    except KbError as error:
        channel.send(Fail("plan", "refused", str(error)))
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
