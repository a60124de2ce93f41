"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""

    def matrix(rows, cols):
        # Random scale per matrix and per row; far from float16's largest and smallest numbers.
        scale = 0.25 + torch.rand((), generator=generator, device=device)
        ragged = 0.5 + torch.rand((rows, 1), generator=generator, device=device)
        offset = 0.1 * torch.randn((), generator=generator, device=device)
        values = (torch.randn((rows, cols), generator=generator, device=device) + offset) * scale * ragged
        return values.to(torch.float16)

    return {"a": matrix(sizes["m"], sizes["k"]), "b": matrix(sizes["k"], sizes["n"])}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"c": inputs["a"] @ inputs["b"]}


def magnitude(inputs, sizes):
    """B of the bound |c - c64| <= k * u * B: the sum of the absolute products."""
    return {"c": inputs["a"].abs() @ inputs["b"].abs()}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return sizes["k"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"c": inputs["a"] @ inputs["b"]}
