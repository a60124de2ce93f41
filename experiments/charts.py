"""Charts as SVG text, drawn here so that a report needs no network and no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1665c0", "#b3541e", "#2a7d4f", "#7b3fa0", "#a3242b", "#5b6775", "#8a6d00", "#0e7c86")
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 30, 40


@dataclass(frozen=True)
class Line:
    """One named curve; ``low`` and ``high`` bound its band (empty: no band)."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bar:
    """One bar of a group, with the ends of its interval."""

    group: str
    name: str
    value: float
    low: float
    high: float


def _ticks(top: float, bottom: float = 0.0) -> list[float]:
    """About five round numbers from ``bottom`` to ``top``."""
    span = max(top - bottom, 1e-9)
    unit = 10.0 ** math.floor(math.log10(span / 4))
    step = unit * next(k for k in (1, 2, 5, 10) if span / (k * unit) <= 6)
    first = math.ceil(bottom / step - 1e-9)
    return [round(k * step, 9) for k in range(first, math.floor(top / step + 1e-9) + 1)]


def _open(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui,sans-serif" font-size="11" fill="#1c2430">',
        f"<title>{escape(title)}</title>",
        f'<text x="{_LEFT}" y="16" font-size="13" font-weight="600">{escape(title)}</text>',
    ]


def _legend(names: Sequence[str], width: int, y: int) -> str:
    step = max(1, (width - _LEFT) // max(1, len(names)))
    return "".join(
        f'<rect x="{_LEFT + i * step}" y="{y - 9}" width="10" height="10" '
        f'fill="{COLOURS[i % len(COLOURS)]}"/><text x="{_LEFT + i * step + 14}" y="{y}">{escape(name)}</text>'
        for i, name in enumerate(names)
    )


def lines(
    title: str, axes: tuple[str, str], curves: Sequence[Line], width: int = 620, height: int = 300
) -> str:
    """Curves over a common x axis, each with its band, and a legend."""
    xs = [x for curve in curves for x in curve.x] or [0.0, 1.0]
    ys = [y for curve in curves for y in (*curve.y, *curve.high)] or [1.0]
    left, top = min(xs), max(max(ys) * 1.05, 1e-9)
    right = max(*xs, left + 1e-9)
    bottom_line = height - _BOTTOM - 18

    def at(x: float, y: float) -> str:
        across = _LEFT + (width - _LEFT - _RIGHT) * (x - left) / (right - left)
        return f"{across:.1f},{bottom_line - (bottom_line - _TOP) * y / top:.1f}"

    parts = _open(width, height, title)
    for tick in _ticks(top):
        x, y = at(left, tick).split(",")
        parts.append(f'<line x1="{x}" x2="{width - _RIGHT}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(right, left):
        x = at(tick, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{bottom_line + 15}" text-anchor="middle">{tick:g}</text>')
    for i, curve in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        if curve.low:
            edge = [at(x, y) for x, y in zip(curve.x, curve.high, strict=True)]
            edge += [at(x, y) for x, y in zip(curve.x[::-1], curve.low[::-1], strict=True)]
            parts.append(f'<polygon points="{" ".join(edge)}" fill="{colour}" opacity="0.15"/>')
        points = " ".join(at(x, y) for x, y in zip(curve.x, curve.y, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(
        f'<text x="{width - _RIGHT}" y="{bottom_line + 28}" text-anchor="end">{escape(axes[0])}</text>'
    )
    parts.append(f'<text x="{width - _RIGHT}" y="16" text-anchor="end">{escape(axes[1])}</text>')
    parts.append(_legend([curve.name for curve in curves], width, height - 6))
    return "".join([*parts, "</svg>"])


def bars(title: str, unit: str, data: Sequence[Bar], width: int = 620) -> str:
    """Horizontal bars by group, one colour per name, with whiskers for the intervals."""
    groups = list(dict.fromkeys(bar.group for bar in data))
    names = sorted({bar.name for bar in data})  # the order, and so the colours, of the curves
    top = max([bar.high for bar in data] + [bar.value for bar in data] + [1e-9]) * 1.05
    margin, thick = 150, 9
    tall = thick * len(names) + 8
    height = _TOP + tall * len(groups) + 44

    def across(value: float) -> float:
        return margin + (width - margin - _RIGHT) * value / top

    parts = _open(width, height, title)
    for tick in _ticks(top):
        x = across(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - 40}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 27}" text-anchor="middle">{tick:g}</text>')
    for i, group in enumerate(groups):
        middle = _TOP + tall * i + tall / 2
        parts.append(f'<text x="{margin - 6}" y="{middle:.1f}" text-anchor="end">{escape(group[:24])}</text>')
    for bar in data:
        k = names.index(bar.name)
        y = _TOP + tall * groups.index(bar.group) + thick * k
        label = f"{bar.group}, {bar.name}: {bar.value:.3f} [{bar.low:.3f}, {bar.high:.3f}] {unit}"
        parts.append(
            f'<g><title>{escape(label)}</title><rect x="{margin}" y="{y}" width="{across(bar.value) - margin:.1f}" '
            f'height="{thick - 2}" fill="{COLOURS[k % len(COLOURS)]}"/>'
            f'<line x1="{across(bar.low):.1f}" x2="{across(bar.high):.1f}" y1="{y + thick / 2 - 1}" '
            f'y2="{y + thick / 2 - 1}" stroke="#1c2430"/></g>'
        )
    parts.append(f'<text x="{width - _RIGHT}" y="16" text-anchor="end">{escape(unit)}</text>')
    return "".join([*parts, _legend(names, width, height - 8), "</svg>"])
