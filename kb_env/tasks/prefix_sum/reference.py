"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    scale = 0.5 + 4.0 * torch.rand((), generator=generator, device=device)
    shift = torch.randn((), generator=generator, device=device)
    return {"x": torch.randn(sizes["n"], generator=generator, device=device) * scale + shift}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": torch.cumsum(inputs["x"], dim=0)}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: the sum of the absolute terms up to each element."""
    return {"y": torch.cumsum(inputs["x"].abs(), dim=0)}


def growth(sizes):
    """Length of the reduction behind the last element; the tolerance caps it (numerics.GROWTH_CAP)."""
    return sizes["n"]


def independent(sizes):
    """Independent errors among the elements: an element's sum has all the errors of those before it."""
    return 1


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": torch.cumsum(inputs["x"], dim=0)}
