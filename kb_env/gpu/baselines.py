"""Library baselines: PyTorch eager and torch.compile, timed in a trusted torch process of their own.

``python -m kb_env.gpu.baselines``. Same flush and events as the runner uses, fresh inputs for each
run, every output compared; labelled cross-process, since they share no context with the program
they are set beside. Work is replayed as a CUDA graph where it can be captured, so that what is timed
is GPU work and not Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kb_env.gpu.protocol import (
    ChannelClosed,
    Copied,
    Done,
    Fail,
    Library,
    LibraryTimes,
    Message,
    Pose,
    open_channel,
)
from kb_env.numerics import Reference
from kb_env.types import Case, KbError, Task

Outputs = Mapping[str, Tensor]

#: Cycles that the queue is kept busy for while the host queues the timed work.
_SPIN_CYCLES = 200_000


class _Server:
    def __init__(self) -> None:
        # float32 means float32 in every baseline; convolutions have TF32 on by default.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._flush = torch.zeros(2 * properties.L2_cache_size // 4, dtype=torch.int32, device="cuda")
        self._task: Task | None = None
        #: what was compiled and captured for the task, by kind and case, with the inputs it reads
        self._runnables: dict[tuple[str, str], tuple[Callable[[], Outputs], bool, Outputs]] = {}

    def answer(self, message: Message) -> Message:
        if isinstance(message, Pose):
            self._task, self._reference = message.task, Reference(message.task)
            self._runnables.clear()
            self._eager: dict[str, Any] = {}
            exec(compile(message.task.reference, f"<reference of {message.task.name}>", "exec"), self._eager)
            return Done()
        if isinstance(message, Library) and self._task is not None:
            return self._times(message, self._task)
        raise KbError(f"a baseline process does not understand {type(message).__name__}")

    def _times(self, message: Library, task: Task) -> LibraryTimes:
        case = next(item for item in (*task.bench, *task.check) if item.name == message.case)
        key = message.kind, message.case
        if key not in self._runnables:
            held = self._reference.inputs(case, 0, "cuda")
            self._runnables[key] = (*self._runnable(message, case, held), held)
        run, graph, inputs = self._runnables[key]
        microseconds = []
        for seed in message.seeds:
            fresh = self._reference.inputs(case, seed, "cuda")
            for name, tensor in fresh.items():
                inputs[name].copy_(tensor)
            expected = self._reference.expected(case, inputs)
            time, outputs = self._time(run)
            verdict = self._reference.compare(expected, outputs)
            if not verdict.ok:
                return LibraryTimes((), False, verdict.message, graph)
            microseconds.append(time)
        return LibraryTimes(tuple(microseconds), True, "", graph)

    def _runnable(self, message: Library, case: Case, inputs: Outputs) -> tuple[Callable[[], Outputs], bool]:
        """A call of the library implementation on ``inputs``; as a CUDA graph if it can be captured."""

        function, sizes = self._eager.get("eager"), dict(case.sizes)
        if function is None:
            raise KbError(f"task {self._reference.task.name} has no eager(inputs, sizes) in reference.py")

        def eager() -> Outputs:
            return function(inputs, sizes)

        call: Callable[[], Outputs] = eager
        if message.kind != "eager":
            # Graphs are captured here, for every kind alike.
            mode = "max-autotune-no-cudagraphs" if message.kind == "max-autotune" else "default"
            call = torch.compile(eager, mode=mode)
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        if not message.graph:
            return call, False
        try:
            return _captured(call), True
        except RuntimeError:
            torch.cuda.synchronize()
            return call, False

    def _time(self, run: Callable[[], Outputs]) -> tuple[float, Outputs]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.amax()
        torch.cuda._sleep(_SPIN_CYCLES)
        start.record()
        outputs = run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1000.0, outputs


def _captured(call: Callable[[], Outputs]) -> Callable[[], Outputs]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times library baselines for the GPU evaluator.")
    parser.add_argument("--channel", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--mirror", type=int, default=-1)
    options = parser.parse_args(arguments)
    channel = open_channel(options.channel)
    torch.cuda.set_device(options.device)
    try:
        server = _Server()
        channel.send(Copied(torch.__version__))
        while True:
            try:
                with torch.no_grad():
                    reply = server.answer(channel.receive())
            except (KbError, RuntimeError) as error:
                reply = Fail("oracle", type(error).__name__, str(error)[:2000])
            channel.send(reply)
    except ChannelClosed:
        return


if __name__ == "__main__":
    main()
