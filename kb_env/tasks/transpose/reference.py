"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    shape = (sizes["rows"], sizes["cols"])
    scale = 0.5 + 4.0 * torch.rand((), generator=generator, device=device)
    shift = torch.randn((), generator=generator, device=device)
    return {"x": torch.randn(shape, generator=generator, device=device) * scale + shift}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": inputs["x"].t().contiguous()}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: nothing is computed, so there is no error to allow."""
    return {"y": torch.zeros_like(inputs["x"].t())}


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": inputs["x"].t().contiguous()}
