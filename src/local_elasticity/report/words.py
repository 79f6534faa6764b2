"""Effects of claims in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local_elasticity.words import number


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
    said = [f"{claim['statistic']}; claimed: {side} {number(claim['bound'])}"]
    name = decisive["name"] or claim["statistic"]
    said.append(f"weakest of {count} comparisons: {name}" if count > 1 else name)
    if claim["kind"] == "exact":
        return "; ".join([*said, "no chance involved"])
    said.append(f"{len(decisive['values'])} units")
    said.append(f"p = {number(claim['p_for'])} for, {number(claim['p_against'])} against")
    return "; ".join(filter(None, said)) + (f". {claim['reason']}" if claim["reason"] else "")
