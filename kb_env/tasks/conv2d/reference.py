"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch
import torch.nn.functional as F


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    batch, ins, outs = sizes["batch"], sizes["in_channels"], sizes["out_channels"]

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    # A scale per channel: an ignored channel or a neighbour's result shows.
    x = normal(batch, ins, sizes["height"], sizes["width"]) + 0.2 * normal(1)
    scale = 0.5 + 2.0 * torch.rand((1, ins, 1, 1), generator=generator, device=device)
    return {"x": x * scale, "w": normal(outs, ins, 3, 3)}


def _taps(x, w):
    """One matrix product per tap: (out x in) @ (in x pixels of the shifted, zero-padded images)."""
    batch, ins, height, width = x.shape
    padded = F.pad(x, (1, 1, 1, 1))
    y = torch.zeros((batch, w.shape[0], height * width), dtype=x.dtype, device=x.device)
    for p in range(3):
        for q in range(3):
            shifted = padded[:, :, p : p + height, q : q + width].reshape(batch, ins, height * width)
            y += w[:, :, p, q] @ shifted
    return y.view(batch, w.shape[0], height, width)


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": _taps(inputs["x"], inputs["w"])}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: the sum of the absolute products."""
    return {"y": _taps(inputs["x"].abs(), inputs["w"].abs())}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return 9 * sizes["in_channels"]


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": F.conv2d(inputs["x"], inputs["w"], padding=1)}
