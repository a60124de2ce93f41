"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``.

    Keys crowd at the low bins by a random power; in small cases strongly, so that contended and
    almost empty bins are both checked.
    """
    crowding = 4.0 if sizes["n"] < 1_000_000 else 0.25
    power = 1.0 + crowding * torch.rand((), generator=generator, device=device)
    place = torch.rand(sizes["n"], generator=generator, device=device) ** power
    return {"keys": (place * sizes["bins"]).to(torch.int32).clamp_(max=sizes["bins"] - 1)}


def reference(inputs, sizes):
    """Expected outputs by argument name: integers, compared exactly."""
    return {"counts": torch.bincount(inputs["keys"], minlength=sizes["bins"])}


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"counts": torch.bincount(inputs["keys"], minlength=sizes["bins"]).to(torch.int32)}
