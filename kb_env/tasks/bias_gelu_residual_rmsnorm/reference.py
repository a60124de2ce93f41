"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch

EPSILON = 1e-5


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    rows, cols = sizes["rows"], sizes["cols"]

    def normal(shape, scale):
        return torch.randn(shape, generator=generator, device=device) * scale

    scale = 0.5 + 2.0 * torch.rand((rows, 1), generator=generator, device=device)
    return {
        "x": normal((rows, cols), scale),
        "bias": normal((cols,), 1.0),
        "residual": normal((rows, cols), scale),
        "weight": 1.0 + normal((cols,), 0.3),
    }


def _hidden(inputs):
    t = inputs["x"] + inputs["bias"]
    return torch.nn.functional.gelu(t) + inputs["residual"]


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    h = _hidden(inputs)
    return {"y": inputs["weight"] * h * torch.rsqrt(h.square().mean(dim=1, keepdim=True) + EPSILON)}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: the terms of h before they cancel, through the norm."""
    h = _hidden(inputs)
    terms = inputs["x"].abs() + inputs["bias"].abs() + inputs["residual"].abs() + h.abs()
    return {"y": inputs["weight"].abs() * terms * torch.rsqrt(h.square().mean(dim=1, keepdim=True) + EPSILON)}


def growth(sizes):
    """Four roundings of the size of the terms (the sum with the bias, the error function beside its
    cancelling 1, the residual, the norm), and the mean's: half of it reaches the result, and its terms are
    squares, of which one running sum errs by 0.24 u sqrt(n)."""
    return 4 + sizes["cols"] / 16


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    h = _hidden(inputs)
    return {"y": torch.nn.functional.rms_norm(h, (sizes["cols"],), inputs["weight"], EPSILON)}
