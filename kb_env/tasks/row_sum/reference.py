"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    rows, cols = sizes["rows"], sizes["cols"]
    scale = 0.5 + 4.0 * torch.rand((rows, 1), generator=generator, device=device)
    shift = torch.randn((rows, 1), generator=generator, device=device)
    return {"x": torch.randn((rows, cols), generator=generator, device=device) * scale + shift}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": inputs["x"].sum(dim=1)}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: the sum of the absolute terms."""
    return {"y": inputs["x"].abs().sum(dim=1)}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return sizes["cols"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": inputs["x"].sum(dim=1)}
