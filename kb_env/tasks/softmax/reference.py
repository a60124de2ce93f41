"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    shape = (sizes["rows"], sizes["cols"])
    scale = 0.5 + 4.0 * torch.rand((), generator=generator, device=device)
    # Far beyond 88 at times: exp(x) alone overflows, so the maximum has to be subtracted.
    shift = 240.0 * (torch.rand((), generator=generator, device=device) - 0.5)
    return {"x": torch.randn(shape, generator=generator, device=device) * scale + shift}


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
    """Length of the reduction behind one output element."""
    return sizes["cols"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": torch.softmax(inputs["x"], dim=1)}
