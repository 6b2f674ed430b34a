"""Axes, lines and marks as inline SVG. Colours are CSS variables of the page, so that pictures follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

Label = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from `low` to `high` with ticks. `place` maps a value to 0..1."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str
    warp: Callable[[float], float] = float

    def place(self, value: float) -> float:
        low, high = self.warp(self.low), self.warp(self.high)
        return (self.warp(min(max(value, self.low), self.high)) - low) / (high - low)


def linear(high: float, title: str, label: Label, num: int = 5) -> Axis:
    """From 0 to a round number above `high`."""
    step = _round_step(high / num if high > 0 else 1.0)
    count = max(1, math.ceil(high / step - 1e-9))
    return Axis(0.0, step * count, tuple((step * i, label(step * i)) for i in range(count + 1)), title)


def logarithmic(low: float, high: float, title: str, label: Label) -> Axis:
    """Ticks at 1, 2 and 5 of each decade, or at decades alone where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2 else (1, 3) if math.log10(high / low) < 3 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    inside = tuple((tick, label(tick)) for tick in ticks if low <= tick <= high)
    return Axis(low, high, inside, title, math.log10)


def _round_step(rough: float) -> float:
    scale = 10.0 ** math.floor(math.log10(rough))
    return next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * 0.999)


@dataclass
class Plot:
    """A picture `width` x `height` in pixels with two axes. Marks are added in their values; later ones lie above."""

    width: int
    height: int
    x: Axis
    y: Axis | None
    name: str
    left: int = 58
    right: int = 14
    top: int = 12
    bottom: int = 42
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point."""
        across = self.left + self.x.place(x) * (self.width - self.left - self.right)
        share = self.y.place(y) if self.y else y
        return round(across, 1), round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    def line(self, points: Sequence[tuple[float, float]], style: str, dots: bool = False) -> None:
        """`style` is a class, or declarations with a colon."""
        pixels = [self.at(x, y) for x, y in points]
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in pixels)
        self.parts.append(f'<path {_style(style, "line")} d="{path}"/>')
        if dots:
            self.parts += [f'<circle {_style(style, "dot")} cx="{x:g}" cy="{y:g}" r="3.5"/>' for x, y in pixels]

    def across(self, y: float, text: str) -> None:
        """A dashed line at a height, named."""
        (x0, y0), (x1, _) = self.at(self.x.low, y), self.at(self.x.high, y)
        self.parts.append(f'<path class="limit" d="M{x0:g} {y0:g}H{x1:g}"/>{_text(x0 + 6, y0 - 5, text, "start", "limit")}')

    def down(self, x: float, text: str) -> None:
        """A dashed line at a place, named."""
        (x0, y0), (_, y1) = self.at(x, self._y_low), self.at(x, self._y_high)
        self.parts.append(f'<path class="limit" d="M{x0:g} {y0:g}V{y1:g}"/>{_text(x0 + 5, y1 + 11, text, "start", "limit")}')

    def note(self, x: float, y: float, text: str, anchor: str = "start", dx: int = 0, dy: int = 0) -> None:
        px, py = self.at(x, y)
        self.parts.append(_text(px + dx, py + dy, text, anchor, "note"))

    def svg(self) -> str:
        """The whole picture."""
        frame = self._x_axis() + (self._y_axis() if self.y else "")
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return f'<svg {size} role="img" aria-label="{escape(self.name)}">{frame}{"".join(self.parts)}</svg>'

    @property
    def _y_low(self) -> float:
        return self.y.low if self.y else 0.0

    @property
    def _y_high(self) -> float:
        return self.y.high if self.y else 1.0

    def _x_axis(self) -> str:
        base = self.height - self.bottom
        lines, texts, free_from = [], [], -math.inf
        for value, label in self.x.ticks:
            if value > self.x.high:
                break
            px, _ = self.at(value, self._y_low)
            lines.append(f'<path class="grid" d="M{px:g} {self.top}V{base}"/>')
            half = len(label) * 3.4
            middle = min(max(px, half), self.width - half)
            if middle - half >= free_from:  # a label that would touch the one before it is left out
                texts.append(_text(round(middle, 1), base + 16, label, "middle", "tick"))
                free_from = middle + half + 6
        middle = self.left + (self.width - self.left - self.right) / 2
        return "".join(lines + texts) + _text(middle, self.height - 6, self.x.title, "middle", "axis")

    def _y_axis(self) -> str:
        parts = []
        for value, label in self.y.ticks if self.y else ():
            _, py = self.at(self.x.low, value)
            parts.append(f'<path class="grid" d="M{self.left} {py:g}H{self.width - self.right}"/>')
            parts.append(_text(self.left - 7, py + 4, label, "end", "tick"))
        return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _style(style: str, kind: str) -> str:
    return f'class="{kind}" style="{escape(style)}"' if ":" in style else f'class="{kind} {style}"'
