"""Replays one plan once under NVIDIA's compute-sanitizer: every buffer an allocation of its own, inputs alone written.

``python -m kb_env.gpu.sanitized --channel PATH --device I``. So an access beyond a buffer's end leaves its
allocation, and a read of what nobody wrote is a read of uninitialised memory. Nothing is timed or compared here.
"""

from __future__ import annotations

import argparse
import ctypes

from kb_env.gpu.driver import call, driver, open_device
from kb_env.gpu.protocol import Bind, ChannelClosed, CudaFault, Done, Fail, Feed, Load, open_channel
from kb_env.gpu.replay import Module
from kb_env.types import KbError


def replay(load: Load, feeds: dict[str, bytes], bind: Bind) -> None:
    """Load, allocate, write the inputs, run everything once and wait for it."""
    stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    module = Module(load.image, {})
    bases: list[int | None] = []
    for buffer in bind.plan.buffers:
        if buffer.kind == "symbol":
            bases.append(None)
            continue
        base = int(call(driver.cuMemAlloc, max(buffer.nbytes, 1)))
        data = feeds.get(buffer.name, b"") if buffer.kind == "argument" else b""
        if data:
            held = ctypes.create_string_buffer(data, len(data))
            call(driver.cuMemcpyHtoD, base, ctypes.addressof(held), len(data))
        bases.append(base)
    call(driver.cuCtxSynchronize)
    bound = module.bind(bind.plan, bases, stream)  # its steps point into memory that it owns
    for step in bound.steps:
        step()
    call(driver.cuCtxSynchronize)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Replays one plan under compute-sanitizer.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mirror", type=int, default=-1)
    options = parser.parse_args(arguments)
    channel = open_channel(options.channel)
    feeds: dict[str, bytes] = {}
    load: Load | None = None
    try:
        open_device(options.device)
        channel.send(Done())
        while True:
            message = channel.receive()
            if isinstance(message, Load):
                load = message
            elif isinstance(message, Feed):
                feeds[message.name] = message.data
            elif isinstance(message, Bind) and load is not None:
                replay(load, feeds, message)
            else:
                break
            channel.send(Done())
        channel.send(Done())
    except CudaFault as fault:
        channel.send(Fail("cuda", fault.name, fault.message))
    except KbError as error:
        channel.send(Fail("plan", "refused", str(error)))
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
