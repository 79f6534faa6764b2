"""Kinds of quantities: a ratio, a change of the loss, a number with a sign, a difference; each has its own sentence."""

from __future__ import annotations

from typing import Literal

from local_elasticity.measures.loss import LOSS
from local_elasticity.measures.registry import known_measure

Kind = Literal["ratio", "loss", "signed", "amount", "change", "unknown"]

CHANGE = "change of "
"""How `le.compare` names the difference of two similarities."""


def kind_of(measure: str) -> Kind:
    """What a result of this name is; `"unknown"` for measures that are not registered.

    >>> [kind_of(name) for name in ("kl", "loss", "stiffness_cos", "activation", "change of kl", "my_own")]
    ['ratio', 'loss', 'signed', 'amount', 'change', 'unknown']
    """
    if measure.startswith(CHANGE) and known_measure(measure.removeprefix(CHANGE)) is not None:
        return "change"
    known = known_measure(measure)
    if known is None:
        return "unknown"
    if known.ratio:
        return "ratio"
    if measure == LOSS.name:
        return "loss"
    return "signed" if known.signed else "amount"
