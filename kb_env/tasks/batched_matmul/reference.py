"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    batch, n = sizes["batch"], sizes["n"]

    def matrices():
        # A scale per matrix: no one constant or neighbour's product fits.
        scale = 0.25 + 4.0 * torch.rand((batch, 1, 1), generator=generator, device=device)
        offset = 0.1 * torch.randn((), generator=generator, device=device)
        return (torch.randn((batch, n, n), generator=generator, device=device) + offset) * scale

    return {"x": matrices(), "y": matrices()}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"c": torch.bmm(inputs["x"], inputs["y"])}


def magnitude(inputs, sizes):
    """B of the bound |c - c64| <= k * u * B: the sum of the absolute products."""
    return {"c": torch.bmm(inputs["x"].abs(), inputs["y"].abs())}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return sizes["n"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"c": torch.bmm(inputs["x"], inputs["y"])}
