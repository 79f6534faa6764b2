"""Numbers and effects in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def percent(share: float) -> str:
    """A share in percent, two significant digits; a dash for what is not known.

    >>> percent(0.4612), percent(0.0123), percent(12.34), percent(float("nan"))
    ('46 %', '1.2 %', '1,234 %', '–')
    """
    if share != share:
        return "–"
    return f"{100 * share:,.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def effect(claim: Mapping[str, Any]) -> str:
    """The effect of a claim in a result, with its range over seeds or runs where the result has one.

    >>> effect({"effect": 0.7812, "low": 0.4712, "high": 0.9634}), effect({"effect": 0.7812})
    ('0.781 (0.471 … 0.963)', '0.781')
    """
    low, high = claim.get("low"), claim.get("high")
    return number(claim["effect"]) + ("" if low is None else f" ({number(low)} … {number(high)})")
