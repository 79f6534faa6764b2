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
    """What was tested, against which bound, on how many units, and both p-values; or why there is none."""
    decisive, count = claim["decisive"], sum(map(len, claim["alternatives"]))
    if claim["verdict"] == "not measured" or decisive is None:
        return claim["reason"] or "no values"
    said = [f"{claim['statistic']}; claimed: {claimed(claim)}"]
    name = decisive["name"] or claim["statistic"]
    said.append(f"weakest of {count} comparisons: {name}" if count > 1 else name)
    if claim["kind"] == "exact":
        return "; ".join([*said, "no chance involved"])
    said.append(f"{len(decisive['values'])} units")
    said.append(f"p before correction {number(claim['p_for'])} for, {number(claim['p_against'])} against")
    return "; ".join(filter(None, said)) + (f". {claim['reason']}" if claim["reason"] else "")


def claimed(claim: Mapping[str, Any]) -> str:
    """On which side of the bound the sentence puts the statistic.

    >>> claimed({"direction": "within", "bound": 1.25, "scale": "log"})
    'within a factor of 1.25'
    >>> claimed({"direction": "within", "bound": 2.0, "scale": "linear"})
    'within ± 2'
    >>> claimed({"direction": "below", "bound": -0.8, "scale": "fisher"})
    'below −0.8'
    """
    of_ratios = claim["direction"] == "within" and claim["scale"] == "log"
    side = "within a factor of" if of_ratios else {"within": "within ±"}.get(claim["direction"], claim["direction"])
    return f"{side} {number(claim['bound'])}"
