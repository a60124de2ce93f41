"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch
import torch.nn.functional as F


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    batch, channels = sizes["batch"], sizes["channels"]
    shape = (batch, channels, sizes["height"], sizes["width"])
    scale = 0.25 + 4.0 * torch.rand((batch, channels, 1, 1), generator=generator, device=device)
    offset = torch.randn((), generator=generator, device=device)
    x = (torch.randn(shape, generator=generator, device=device) + offset) * scale
    return {"x": x, "w": torch.randn((channels, 3, 3), generator=generator, device=device)}


def _taps(x, w):
    """Nine shifted, weighted copies of the zero-padded images, summed."""
    height, width = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1))
    y = torch.zeros_like(x)
    for p in range(3):
        for q in range(3):
            y.addcmul_(w[:, p, q][None, :, None, None], padded[:, :, p : p + height, q : q + width])
    return y


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    return {"y": _taps(inputs["x"], inputs["w"])}


def magnitude(inputs, sizes):
    """B of the bound |y - y64| <= k * u * B: the sum of the absolute products."""
    return {"y": _taps(inputs["x"].abs(), inputs["w"].abs())}


def growth(sizes):
    """Length of the reduction behind one output element."""
    return 9


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    return {"y": F.conv2d(inputs["x"], inputs["w"][:, None], padding=1, groups=sizes["channels"])}
