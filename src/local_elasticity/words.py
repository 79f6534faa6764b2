"""Numbers in words, and names in order: the same form in sentences, pages, frames and figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SMALL, LARGE = 1e-4, 1e7
"""Numbers beyond these are written with a power of ten."""


def number(value: float | None) -> str:
    """Three significant digits; a dash for what is not known.

    >>> number(0.51234), number(12345.0), number(float("nan")), number(-0.00000552)
    ('0.512', '12,345', '–', '−5.52 × 10⁻⁶')
    """
    if value is None or value != value:
        return "–"
    size = abs(value)
    if size == float("inf") or size == 0:
        text = "∞" if size else "0"
    elif size < SMALL or size >= LARGE:
        digits, power = f"{size:.2e}".split("e")
        text = f"{float(digits):g} × 10{str(int(power)).translate(SUPERSCRIPTS)}"
    else:
        text = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}"
    return f"−{text}" if value < 0 else text


def times(value: float, low: float | None = None, high: float | None = None) -> str:
    """How many times as far, two or three digits, with its interval.

    >>> times(3.501, 3.23, 3.82), times(12.3, 9.2, 16.1), times(1.0)
    ('3.5× (3.2–3.8×)', '12× (9.2–16×)', '1.0×')
    >>> times(1.262, 1.214, 1.281), times(1.11, 1.04, 1.19)  # another digit tells the ends apart, or from 1
    ('1.26× (1.21–1.28×)', '1.11× (1.04–1.19×)')
    """
    text = [_digits(one) for one in (value, low, high) if one is not None]
    if low is not None and high is not None and high < 9.5 and (len(set(text)) < 3 or "1.0" in text[1:]):
        text = [f"{one:.2f}" for one in (value, low, high)]
    return f"{text[0]}×" + (f" ({text[1]}–{text[2]}×)" if len(text) == 3 else "")


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    return f"{value:.2f}" if value < 0.95 else f"{value:.1f}" if value < 9.5 else number(round(value))


def p_value(p: float, floor: float = 0.0) -> str:
    """A p-value as it is written after "p".

    Args:
        p: the p-value.
        floor: the smallest that the number of random draws allows; there it is an upper bound.

    >>> p_value(0.005, floor=0.005), p_value(0.4321), p_value(float("nan"))
    ('≤ 0.005', '= 0.43', 'unknown')
    """
    return "unknown" if p != p else f"{'≤' if p <= floor else '='} {p:.2g}"


def percent(share: float) -> str:
    """A share in percent, two significant digits; a dash for what is not known.

    >>> percent(0.4612), percent(0.0123), percent(12.34), percent(float("nan"))
    ('46 %', '1.2 %', '1,234 %', '–')
    """
    if share != share:
        return "–"
    return f"{100 * share:,.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def step_sizes(sizes: Sequence[float]) -> str:
    """Step sizes in ascending order: one, or their range.

    >>> step_sizes([0.01]), step_sizes([0.01, 0.05, 0.1])
    ('step size 0.01', 'step sizes 0.01 to 0.1')
    """
    return f"step size {sizes[0]:g}" if len(sizes) == 1 else f"step sizes {sizes[0]:g} to {sizes[-1]:g}"


def natural(label: Any) -> tuple[Any, ...]:
    """A key that sorts labels as people do: numbers by size, also where they are part of a name.

    >>> sorted(["class 10", "class 9", "10", "-1", "9"], key=natural)
    ['-1', '9', '10', 'class 9', 'class 10']
    """
    text = str(label)
    try:
        size = float(text)
    except ValueError:
        size = math.inf
    if math.isfinite(size):
        return 0, size, text
    parts = re.split(r"(\d+)", text)
    words, numbers = parts[::2], [one.lstrip("0") for one in parts[1::2]]
    mixed = [part for word, one in zip(words, [*numbers, ""], strict=True) for part in (word, len(one), one)]
    return 1, mixed, text


def in_natural_order(labels: Iterable[Any]) -> list[Any]:
    """Every different label once, as people sort them.

    >>> in_natural_order(["b10", "b9", "b9"]), in_natural_order([10, 9])
    (['b9', 'b10'], [9, 10])
    """
    return sorted(dict.fromkeys(labels), key=natural)
