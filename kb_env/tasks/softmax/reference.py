"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    shape = (sizes["rows"], sizes["cols"])
    scale = 0.5 + 4.0 * torch.rand((), generator=generator, device=device)
    shift = 10.0 * torch.randn((), generator=generator, device=device)
    x = torch.randn(shape, generator=generator, device=device) * scale + shift
    # Some rows lie where exp(x) alone overflows or vanishes: the maximum cannot be left out.
    x[3::8] += 120.0
    x[7::8] -= 120.0
    return {"x": x}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": torch.softmax(inputs["x"], dim=1)}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= c * u * B: the size of the terms the result is made of."""
    x = inputs["x"]
    y = torch.softmax(x, dim=1)
    # exp(x - max) inherits an absolute error of u * |x| in its argument.
    return {"y": y * (1.0 + x.abs().amax(dim=1, keepdim=True))}


def growth(sizes):
    """Length of the sum that every element is divided by: its relative error is all of the element's."""
    return sizes["cols"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": torch.softmax(inputs["x"], dim=1)}
