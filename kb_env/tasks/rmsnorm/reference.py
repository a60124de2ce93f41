"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch

EPSILON = 1e-6


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    rows, cols = sizes["rows"], sizes["cols"]
    scale = 0.5 + 4.0 * torch.rand((rows, 1), generator=generator, device=device)
    # Squares of some rows are beyond float16: they must be summed in the declared float32.
    scale[3::4] *= 64.0
    shift = torch.randn((rows, 1), generator=generator, device=device)
    return {
        "x": torch.randn((rows, cols), generator=generator, device=device) * scale + shift,
        "weight": 1.0 + 0.5 * torch.randn(cols, generator=generator, device=device),
    }


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    x = inputs["x"]
    return {"y": x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + EPSILON) * inputs["weight"]}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: a product of factors, so its own size."""
    return {"y": reference(inputs, sizes)["y"].abs()}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return sizes["cols"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": torch.nn.functional.rms_norm(inputs["x"], (sizes["cols"],), inputs["weight"], EPSILON)}
