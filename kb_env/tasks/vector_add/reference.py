"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""

    def vector():
        scale = 0.5 + 4.0 * torch.rand((), generator=generator, device=device)
        shift = 5.0 * torch.randn((), generator=generator, device=device)
        return torch.randn(sizes["n"], generator=generator, device=device) * scale + shift

    return {"a": vector(), "b": vector()}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"c": inputs["a"] + inputs["b"]}


def magnitude(inputs, sizes):
    """B of the bound |c - c64| <= k * u * B: one addition has no error but the rounding of its result."""
    return {"c": torch.zeros_like(inputs["a"])}


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"c": inputs["a"] + inputs["b"]}
