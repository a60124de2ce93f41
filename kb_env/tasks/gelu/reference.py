"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    scale = 0.5 + 2.0 * torch.rand((), generator=generator, device=device)
    shift = torch.randn((), generator=generator, device=device)
    return {"x": torch.randn(sizes["n"], generator=generator, device=device) * scale + shift}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": torch.nn.functional.gelu(inputs["x"])}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B.

    1 + erf cancels for negative x and leaves erf's own absolute error, of several u, times |x| / 2.
    """
    return {"y": 2.0 * inputs["x"].abs()}


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": torch.nn.functional.gelu(inputs["x"])}
