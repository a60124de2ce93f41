"""Torch code run with its sums in another order, or with fewer digits: what other programs would give.

A tolerance must accept every honest order of summation and reject the next lower precision. Both are
made here from the task's own reference: the mode below takes each torch operation that adds up
terms and adds them in an explicit order, and can round every intermediate result. Operations it has no
rule for run as they are (and are rounded as well).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

#: Terms of a matrix product that are added before the running sum is touched, as in a tile.
TILE = 16


def round_to(x: Tensor, digits: int) -> Tensor:
    """``x`` rounded to nearest at ``digits`` significant bits, in its own type and exponent range."""
    mantissa, exponent = torch.frexp(x)
    rounded = torch.ldexp(torch.round(mantissa * 2.0**digits), exponent - digits).to(x.dtype)
    return torch.where(torch.isfinite(x), rounded, x)


class Arithmetic(TorchDispatchMode):
    """Within this mode torch sums in ``lanes`` interleaved running sums, from the end if ``backwards``.

    ``digits``: significant bits every floating-point result is rounded to; None leaves them as they are.
    """

    def __init__(self, lanes: int = 32, backwards: bool = False, digits: int | None = None) -> None:
        super().__init__()
        self.lanes, self.backwards, self.digits = lanes, backwards, digits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        result = func(*args, **(kwargs or {})) if rule is None else rule(self, *args, **(kwargs or {}))
        if isinstance(result, tuple):
            return tuple(self.rounded(item) for item in result)
        return self.rounded(result)

    def rounded(self, x: Any) -> Any:
        if self.digits is None or not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return round_to(x, self.digits)

    def add_up(self, terms: Tensor) -> Tensor:
        """Sum over the last dimension, one after the other in each lane, then over the lanes."""
        while terms.shape[-1] > 1:
            if self.backwards:
                terms = terms.flip(-1)
            lanes = min(self.lanes, terms.shape[-1] // 2)
            missing = -terms.shape[-1] % lanes
            terms = torch.nn.functional.pad(terms, (0, missing)).unflatten(-1, (-1, lanes))
            total = terms[..., 0, :]
            for step in range(1, terms.shape[-2]):
                total = self.rounded(total + terms[..., step, :])
            terms = total
        return terms[..., 0]


def _sum(mode: Arithmetic, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if not x.is_floating_point() or x.numel() == 0:
        return aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
    dims = list(range(x.dim())) if not dim and dim != 0 else ([dim] if isinstance(dim, int) else list(dim))
    dims = sorted(d % x.dim() for d in dims)
    rest = [d for d in range(x.dim()) if d not in dims]
    total = mode.add_up(x.permute(*rest, *dims).flatten(len(rest)))
    if keepdim:
        for d in dims:
            total = total.unsqueeze(d)
    return total


def _sum_all(mode: Arithmetic, x: Tensor, *, dtype: Any = None) -> Tensor:
    return _sum(mode, x, dtype=dtype)


def _mean(
    mode: Arithmetic, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    total = _sum(mode, x, dim, keepdim)
    return total / (x.numel() // total.numel())


def _matmul(mode: Arithmetic, a: Tensor, b: Tensor) -> Tensor:
    starts = list(range(0, a.shape[-1], TILE))
    total = torch.zeros_like(a[..., :1] @ b[..., :1, :])
    for start in reversed(starts) if mode.backwards else starts:
        part = a[..., start : start + TILE] @ b[..., start : start + TILE, :]
        total = mode.rounded(total + part)
    return total


def _cumsum(mode: Arithmetic, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    if not x.is_floating_point():
        return aten.cumsum.default(x, dim, dtype=dtype)
    return _scan(mode, x.movedim(dim, -1)).movedim(-1, dim)


def _scan(mode: Arithmetic, x: Tensor) -> Tensor:
    """Inclusive scan of the last dimension in blocks whose sums are scanned in turn."""
    n, width = x.shape[-1], 4 * mode.lanes
    blocks = torch.nn.functional.pad(x, (0, -n % width)).unflatten(-1, (-1, width))
    columns = [blocks[..., 0]]
    for i in range(1, width):
        columns.append(mode.rounded(columns[-1] + blocks[..., i]))
    inner = torch.stack(columns, dim=-1)
    if n > width:
        before = _scan(mode, inner[..., -1])[..., :-1]
        before = torch.nn.functional.pad(before, (1, 0))
        inner = mode.rounded(inner + before[..., None])
    return inner.flatten(-2)[..., :n]


def _softmax(mode: Arithmetic, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    powers = mode.rounded(torch.exp(mode.rounded(x - x.amax(dim, keepdim=True))))
    return powers / _sum(mode, powers, [dim], True)


def _logsumexp(mode: Arithmetic, x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim)
    top = x.amax(dims, keepdim=True)
    powers = mode.rounded(torch.exp(mode.rounded(x - top)))
    total = mode.rounded(torch.log(_sum(mode, powers, dims, True))) + top
    return total if keepdim else total.squeeze(dims)


def _layer_norm(
    mode: Arithmetic, x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = mode.rounded(_mean(mode, x, dims, True))
    apart = mode.rounded(x - mean)
    scale = mode.rounded(torch.rsqrt(_mean(mode, mode.rounded(apart * apart), dims, True) + eps))
    y = mode.rounded(apart * scale)
    y = y if weight is None else mode.rounded(y * weight)
    return y if bias is None else y + bias, mean, scale


#: How each operation that adds up terms does so within the mode.
RULES: dict[Any, Callable[..., Any]] = {
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum_all,
    aten.mean.dim: _mean,
    aten.mean.default: _mean,
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.cumsum.default: _cumsum,
    aten._softmax.default: _softmax,
    aten.logsumexp.default: _logsumexp,
    aten.native_layer_norm.default: _layer_norm,
}
