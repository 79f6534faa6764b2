"""Measures in plain words, for readers who meet them for the first time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RATIOS = ("relative", "relative_l1", "kl")
"""Measures whose unit is the source's own change, so that an example has 1 with itself."""

MEANING = {
    "relative": "how far a target's prediction moves, as a share of how far the source's own moves",
    "relative_l1": "how far a target's predicted probabilities move, as a share of how far the source's own move",
    "kl": "how far a target's predicted distribution moves (in KL divergence), as a share of how far the source's own moves",  # noqa: E501
    "kernel": "how much a target's prediction changes for each unit of step, with its sign",
    "normalized_kernel": "how much a target's prediction changes for each unit of step, as a cosine between −1 and 1",
    "stiffness_cos": "whether a step that helps the source helps the target too: the cosine of their loss gradients",
    "stiffness_sign": "whether a step that helps the source helps the target (1) or harms it (−1)",
    "activation": "how alike two examples switch the network's ReLU units on and off, as a cosine",
}


def meaning(measure: str) -> str:
    """What a measure tells, as half a sentence.

    >>> meaning("my_own")
    'what the function my_own makes of the changes'
    """
    return MEANING.get(measure, f"what the function {measure} makes of the changes")


def number(value: float | None) -> str:
    """Three significant digits; a dash for what is not known.

    >>> number(0.51234), number(12345.0), number(float("nan"))
    ('0.512', '12,345', '–')
    """
    if value is None or value != value:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.3g}"


def effect(claim: Mapping[str, Any]) -> str:
    """The effect of a claim in a result, with its range over seeds or runs where the result has one.

    >>> effect({"effect": 0.7812, "low": 0.4712, "high": 0.9634}), effect({"effect": 0.7812})
    ('0.781 (0.471 … 0.963)', '0.781')
    """
    low, high = claim.get("low"), claim.get("high")
    return number(claim["effect"]) + ("" if low is None else f" ({number(low)} … {number(high)})")
