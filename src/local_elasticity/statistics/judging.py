"""How claims are judged: see `claims` for what they are, and for the rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from local_elasticity.statistics.claims import (
    Alternatives,
    Claim,
    ClaimComparison,
    Direction,
    Effect,
    Judged,
    NotMeasuredError,
    Scale,
    Units,
    Verdict,
    complete,
    number_of,
)
from local_elasticity.statistics.verdicts import FEWEST_UNITS, LEVEL, holm, interval, one_sided, permuted_within_units


def judge(claims: Sequence[Claim], values: Any, paper: Any = None) -> list[Judged]:
    """The claims of one experiment with their verdicts, in order.

    Args:
        claims: what is judged together: Holm's correction is over them.
        values: what every claim's `measure` is called with.
        paper: the same with the paper's own printed numbers as one unit; its values stand beside ours.

    Returns:
        A `Judged` for every claim. A claim whose values are missing is "not measured".

    >>> rises = Claim("rises", "It rises.", "§1", "end less start", lambda seeds: [{"end − start": seeds}])
    >>> judge([rises], [0.9, 1.1, 1.0, 1.2, 0.8])[0].verdict, judge([rises], [0.9, -1.1, 1.0, 1.2, -0.8])[0].verdict
    ('supported', 'undecided')
    >>> judge([rises], [0.9, None, 1.0])[0].verdict
    'not measured'
    """
    return decided([_tested(claim, values, paper) for claim in claims])


def judge_published(claims: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """The claims of a result.json judged anew from the units in it, by the rules that it states.

    Args:
        claims: `result["claims"]`.

    Returns:
        A `Judged` for every claim; compare its verdict with the published one.
    """
    return decided([_tested(_restored(one), one, None) for one in claims])


def _restored(one: Mapping[str, Any]) -> Claim:
    names = ("id", "sentence", "place", "statistic", "direction", "scale", "kind", "resolution", "ours")
    effect, implies = Effect(one["bound"], one["bound_reason"]), tuple(one["implies"])
    return Claim(**{name: one[name] for name in names}, measure=_published_units, effect=effect, implies=implies)


def _published_units(one: Mapping[str, Any]) -> Alternatives:
    if not one["alternatives"]:
        raise NotMeasuredError(one["reason"])
    return [{c["name"]: c["values"] for c in alternative} for alternative in one["alternatives"]]


def decided(tested: Sequence[Judged]) -> list[Judged]:
    """Verdicts from the p-values of one experiment: Holm's correction in either direction, then implications."""
    known = [place for place, one in enumerate(tested) if one.p_for is not None]
    directions = {"supported": "p_for", "contradicted": "p_against"}
    verdicts: dict[int, Verdict] = dict.fromkeys(known, "undecided")
    for verdict, name in directions.items():
        adjusted = holm([getattr(tested[place], name) for place in known])
        for place, p in zip(known, adjusted, strict=True):
            if p <= LEVEL:
                verdicts[place] = verdict  # type: ignore[assignment]
    at = {one.id: place for place, one in enumerate(tested)}
    for _ in tested:  # a chain of implications is at most that long
        for place, one in enumerate(tested):
            for weaker in (at[name] for name in one.implies if name in at):
                if verdicts.get(place) == "supported" and weaker in verdicts:
                    verdicts[weaker] = "supported"
                if verdicts.get(weaker) == "contradicted" and place in verdicts:
                    verdicts[place] = "contradicted"
    return [replace(one, verdict=verdicts.get(place, "not measured")) for place, one in enumerate(tested)]


def _tested(claim: Claim, values: Any, paper: Any) -> Judged:
    try:
        alternatives = claim.measure(values)
    except NotMeasuredError as error:
        return _judged(claim, [], None, None, str(error), paper)
    compared = [[_compared(name, units, claim) for name, units in one.items()] for one in alternatives]
    p_for, p_against = _together(compared, claim)
    return _judged(claim, compared, p_for, p_against, _missing(compared), paper)


def _judged(
    claim: Claim,
    compared: list[list[ClaimComparison]],
    p_for: float | None,
    p_against: float | None,
    reason: str,
    paper: Any,
) -> Judged:
    return Judged(
        claim.id,
        claim.sentence,
        claim.place,
        claim.ours,
        claim.statistic,
        claim.kind,
        claim.scale,
        claim.direction,
        claim.effect.bound,
        claim.effect.reason,
        claim.resolution,
        list(claim.implies),
        compared,
        p_for,
        p_against,
        reason=reason,
        paper=None if paper is None else _printed(claim, paper),
    )


def _printed(claim: Claim, paper: Any) -> list[float] | None:
    """The weakest comparison of each alternative in the paper's own numbers; None where it does not print them."""
    try:
        found = [[_plain(v[0]) for v in one.values()] for one in claim.measure(paper)]
    except NotMeasuredError:
        return None
    known = [[v for v in one if v is not None] for one in found]
    if claim.kind == "spread":
        return [max(one) - min(one) for one in known] if all(known) else None
    weakest: dict[Direction, Callable[[list[float]], float]] = {
        "above": min,
        "below": max,
        "within": lambda values: max(values, key=abs),
    }
    complete = all(known) and [len(one) for one in known] == [len(one) for one in found]
    return [weakest[claim.direction](one) for one in known] if complete else None


def _missing(compared: Sequence[Sequence[ClaimComparison]]) -> str:
    """Which comparisons have no value at some unit, or too few units."""
    said = []
    for one in (c for alternative in compared for c in alternative):
        absent = sum(value is None for value in one.values)
        if absent:
            said.append(f"{one.name}: {absent} of {len(one.values)} units missing, diverged or not resolved")
        elif one.estimate is None:
            said.append(f"{one.name}: {len(one.values)} units, {FEWEST_UNITS} needed")
    more = f" and {len(said) - 3} more" if len(said) > 3 else ""
    return "; ".join(said[:3]) + more


def _compared(name: str, units: Units, claim: Claim) -> ClaimComparison:
    values = [_plain(value) for value in units]
    known = np.array([value for value in values if value is not None], dtype=float)
    if len(known) < len(values) or (claim.kind != "exact" and len(known) < FEWEST_UNITS) or not len(known):
        return ClaimComparison(name, values)
    x = _on_scale(known, claim.scale, claim.resolution)
    bound = float(_on_scale(np.array([claim.effect.bound]), claim.scale, 0)[0])
    if claim.kind == "exact":
        lies = {"above": x > bound, "below": x < bound, "within": np.abs(x) < bound}[claim.direction].all()
        return ClaimComparison(name, values, float(known.mean()), p_for=float(not lies), p_against=float(lies))
    low, middle, high = interval(x, _floor(claim))
    if claim.kind == "spread":
        return ClaimComparison(name, values, middle, low, high)
    middle, low, high = (float(v) for v in _back(np.array([middle, low, high]), claim.scale))
    return ClaimComparison(name, values, middle, low, high, *_p_values(x, bound, claim))


def interval_on(values: np.ndarray, scale: Scale) -> tuple[float, float, float]:
    """The unadjusted 95 % interval of the mean on a scale, (low, mean, high), in the values' own unit.

    >>> [round(v, 2) for v in interval_on(np.array([0.5, 1.0, 2.0]), "log")]
    [0.18, 1.0, 5.59]
    """
    low, middle, high = _back(np.array(interval(_on_scale(values, scale, 0.0))), scale)
    return float(low), float(middle), float(high)


def _p_values(x: np.ndarray, bound: float, claim: Claim) -> tuple[float, float]:
    """That the mean lies where the claim says, and that it lies on the other side."""
    floor = _floor(claim)
    if claim.direction == "within":
        inside = max(one_sided(bound - x, floor)[0], one_sided(x + bound, floor)[0])
        outside = min(one_sided(x - bound, floor)[0], one_sided(-bound - x, floor)[0])
        return inside, min(1.0, 2 * outside)
    return one_sided(x - bound if claim.direction == "above" else bound - x, floor)


def _together(compared: Sequence[Sequence[ClaimComparison]], claim: Claim) -> tuple[float | None, float | None]:
    """p-values of the whole claim. A comparison without a value cannot succeed, but another can still contradict."""
    if claim.kind == "spread":
        return _spread(compared, claim)
    if complete(compared):
        succeed = [max(number_of(c.p_for) for c in one) for one in compared]
        fail = [holm([number_of(c.p_against) for c in one]) for one in compared]
        return min(holm(succeed)), max(min(one) for one in fail)
    known = [[number_of(c.p_against) for c in one if c.p_against is not None] for one in compared]
    if known and all(known):
        against = max(min(1.0, len(one) * min(p)) for one, p in zip(compared, known, strict=True))
        if against <= LEVEL:
            return 1.0, against
    return None, None


def _spread(compared: Sequence[Sequence[ClaimComparison]], claim: Claim) -> tuple[float | None, float | None]:
    """Whether choices differ, in every alternative's table of choices × units: values are exchanged between choices
    within a unit. For: unlikely under exchange, and the means range over more than the bound. Against: every two
    choices are within the bound of each other."""
    p_for, p_against = [], []
    for one in compared:
        if not complete([one]):
            return None, None
        table = np.array([c.values for c in one], dtype=float)
        large = np.ptp(table.mean(1)) > claim.effect.bound
        p_for.append(permuted_within_units(table) if large else 1.0)
        gaps = [table[i] - table[j] for i, j in combinations(range(len(table)), 2)]
        bound, floor = claim.effect.bound, _floor(claim)
        p_against.append(max(one_sided(bound - sign * gap, floor)[0] for gap in gaps for sign in (-1, 1)))
    return max(p_for), min(holm(p_against))


def _floor(claim: Claim) -> float:
    """The standard deviation of rounding, on the scale of differences."""
    return claim.resolution / math.sqrt(12) if claim.scale == "linear" else 0.0


def _on_scale(values: np.ndarray, scale: Scale, resolution: float) -> np.ndarray:
    if scale == "log":
        return np.asarray(np.log(np.maximum(values, max(resolution, 1e-300))))
    if scale == "fisher":
        most = 1 - max(resolution / 2, 1e-9)
        return np.asarray(np.arctanh(np.clip(values, -most, most)))
    return np.arcsin(np.sqrt(values)) if scale == "arcsine" else values


def _back(values: np.ndarray, scale: Scale) -> np.ndarray:
    back: dict[Scale, Callable[[np.ndarray], np.ndarray]] = {
        "linear": lambda x: x,
        "log": np.exp,
        "fisher": np.tanh,
        "arcsine": lambda x: np.sin(x.clip(0, np.pi / 2)) ** 2,
    }
    return np.asarray(back[scale](values))


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
