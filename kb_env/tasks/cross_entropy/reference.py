"""Trusted side of the task: inputs, expected result, and the magnitude its error bound scales with."""

import torch


def inputs(sizes, generator, device):
    """Input tensors by argument name, drawn from ``generator`` on ``device``."""
    rows, cols = sizes["rows"], sizes["cols"]
    scale = 2.0 + 4.0 * torch.rand((), generator=generator, device=device)
    # Rows lie far apart: a sum of exp(x) without the row's maximum overflows or underflows.
    shift = 60.0 * torch.randn((rows, 1), generator=generator, device=device)
    logits = torch.randn((rows, cols), generator=generator, device=device) * scale + shift
    labels = torch.randint(0, cols, (rows,), generator=generator, device=device, dtype=torch.int32)
    return {"logits": logits, "labels": labels}


def reference(inputs, sizes):
    """Expected outputs by argument name, computed in whatever float dtype the inputs have."""
    logits, labels = inputs["logits"], inputs["labels"].long()
    chosen = logits.gather(1, labels[:, None])[:, 0]
    return {"loss": torch.logsumexp(logits, dim=1) - chosen}


def magnitude(inputs, sizes):
    """B of the bound |loss - loss64| <= k * u * B.

    The result is a difference of terms of the size of the logits; the sum's relative error enters
    the logarithm as an absolute one, which grows with the number of terms but not with their size
    (0.24 u sqrt(n) for one running sum of positive terms, an honest order).
    """
    logits, labels = inputs["logits"], inputs["labels"].long()
    chosen = logits.gather(1, labels[:, None])[:, 0]
    largest = logits.abs().amax(dim=1)
    return {"loss": largest + chosen.abs() + sizes["cols"] ** 0.5}


def growth(sizes):
    """The error of the sum is already part of the magnitude."""
    return 1


def eager(inputs, sizes):
    """What a PyTorch user would write: the library baseline, in the task's own dtype."""
    loss = torch.nn.functional.cross_entropy(inputs["logits"], inputs["labels"].long(), reduction="none")
    return {"loss": loss}
