"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch

EPSILON = 1e-5


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    rows, cols = sizes["rows"], sizes["cols"]
    scale = 0.5 + 4.0 * torch.rand((rows, 1), generator=generator, device=device)
    shift = 3.0 * torch.randn((rows, 1), generator=generator, device=device)
    return {
        "x": torch.randn((rows, cols), generator=generator, device=device) * scale + shift,
        "gamma": 1.0 + 0.5 * torch.randn(cols, generator=generator, device=device),
        "beta": torch.randn(cols, generator=generator, device=device),
    }


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    shape = (sizes["cols"],)
    x, gamma, beta = inputs["x"], inputs["gamma"], inputs["beta"]
    return {"y": torch.nn.functional.layer_norm(x, shape, gamma, beta, EPSILON)}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: x and the mean before they cancel, scaled, and beta."""
    x = inputs["x"]
    scale = torch.rsqrt(x.var(dim=1, correction=0, keepdim=True) + EPSILON) * inputs["gamma"].abs()
    return {"y": (x.abs() + x.abs().mean(dim=1, keepdim=True)) * scale + inputs["beta"].abs()}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return sizes["cols"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return reference(inputs, sizes)
