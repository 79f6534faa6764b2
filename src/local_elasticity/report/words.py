"""Numbers and effects in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SMALL, LARGE = 1e-4, 1e7
"""Numbers beyond these are written with a power of ten."""


def number(value: float | None) -> str:
    """Three significant digits; a dash for what is not known.

    >>> number(0.51234), number(12345.0), number(float("nan")), number(-0.00000552)
    ('0.512', '12,345', '–', '-5.52 × 10⁻⁶')
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
    return f"-{text}" if value < 0 else text


def times(value: float, low: float | None = None, high: float | None = None) -> str:
    """How many times as far, two or three digits, with its interval.

    >>> times(3.501, 3.23, 3.82), times(12.3, 9.2, 16.1), times(1.0)
    ('3.5× (3.2–3.8×)', '12× (9.2–16×)', '1.0×')
    """
    text = [_digits(one) for one in (value, low, high) if one is not None]
    return f"{text[0]}×" + (f" ({text[1]}–{text[2]}×)" if len(text) == 3 else "")


def _digits(value: float) -> str:
    if value != value:
        return "–"
    return f"{value:.2f}" if value < 0.95 else f"{value:.1f}" if value < 9.5 else number(round(value))


def p_value(p: float) -> str:
    """A p-value as it is written after "p".

    >>> p_value(0.005), p_value(0.4321), p_value(float("nan"))
    ('= 0.005', '= 0.43', 'unknown')
    """
    return "unknown" if p != p else f"= {p:.2g}"


def percent(share: float) -> str:
    """A share in percent, two significant digits; a dash for what is not known.

    >>> percent(0.4612), percent(0.0123), percent(12.34), percent(float("nan"))
    ('46 %', '1.2 %', '1,234 %', '–')
    """
    if share != share:
        return "–"
    return f"{100 * share:,.0f} %" if abs(share) >= 0.1 else f"{100 * share:.2g} %"


def effect(claim: Mapping[str, Any]) -> str:
    """The comparison that a claim's verdict rests on: its average over units and the unadjusted 95 % interval.

    >>> effect({"decisive": {"estimate": 0.7812, "low": 0.4712, "high": 0.9634}})
    '0.781 (0.471 … 0.963)'
    >>> effect({"decisive": None})
    '–'
    """
    decisive = claim["decisive"]
    if decisive is None:
        return "–"
    low, high = decisive["low"], decisive["high"]
    return number(decisive["estimate"]) + ("" if low is None else f" ({number(low)} … {number(high)})")


def printed(claim: Mapping[str, Any]) -> str:
    """The same of the paper's own numbers, where it prints them: the strongest alternative.

    >>> printed({"paper": [1.5, -2.0], "direction": "above"}), printed({"paper": None, "direction": "above"})
    ('1.5', '–')
    """
    if not claim["paper"]:
        return "–"
    strongest = {"above": max(claim["paper"]), "below": min(claim["paper"]), "within": min(claim["paper"], key=abs)}
    return number(strongest[claim["direction"]])


def evidence(claim: Mapping[str, Any]) -> str:
    """What was tested, on how many units, against which bound, and both p-values; or why there is none."""
    decisive, count = claim["decisive"], sum(map(len, claim["alternatives"]))
    if claim["verdict"] == "not measured" or decisive is None:
        return claim["reason"] or "no values"
    side = {"above": "above", "below": "below", "within": "within ±"}[claim["direction"]]
    said = [f"{claim['statistic']}; {side} {number(claim['bound'])}?"]
    name = decisive["name"] or claim["statistic"]
    said.append(f"weakest of {count} comparisons: {name}" if count > 1 else name)
    if claim["kind"] == "exact":
        return "; ".join([*said, "no chance involved"])
    said.append(f"{len(decisive['values'])} seeds")
    said.append(f"p for {number(claim['p_for'])}, against {number(claim['p_against'])}")
    return "; ".join(filter(None, said)) + (f". {claim['reason']}" if claim["reason"] else "")
