"""How a sentence of a paper is judged from several runs: two one-sided tests over units of replication.

A *unit* is a trained run, that is a seed; never columns, pairs or reductions of one run. Every unit gives one value of
the claim's statistic, which the sentence says to be above or below a bound (0, or the smallest effect that counts), or
within it on either side. Comparisons on the same units are differences or ratios within a unit, so they are paired.

    supported      the values lie where the sentence says: one-sided test at 2.5 %, after Holm's correction over the
                   claims of the experiment
    contradicted   they lie on the other side of the bound, tested the same way
    undecided      neither test rejects
    not measured   a unit is missing or diverged; the reason says which

A claim may need several comparisons. `alternatives` is a list of alternatives, each a list of comparisons that must
all succeed: "best" is one alternative with a comparison against every competitor, "in some cases" is an alternative
for every case. Intersection–union tests need no correction; choices among alternatives or competitors have Holm's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Verdict = Literal["supported", "contradicted", "undecided", "not measured"]
Scale = Literal["linear", "log", "fisher", "arcsine"]
Kind = Literal["tested", "exact", "spread"]
Direction = Literal["above", "below", "within"]


class NotMeasuredError(Exception):
    """A claim's values are not there; the message says why."""


Units = Sequence[float | None] | np.ndarray
"""A value for every unit, None or NaN where it is missing or diverged."""

Alternatives = Sequence[Mapping[str, Units]]
"""For each alternative, the comparisons that must all succeed, by name."""


@dataclass(frozen=True)
class Effect:
    """The bound that a statistic is compared with, and why it is that."""

    bound: float
    reason: str


ANY = Effect(0.0, "the sentence names a direction and no size")


@dataclass(frozen=True)
class Claim:
    """A sentence, and how it is judged.

    Attributes:
        id: its name within an experiment.
        sentence: quoted from the paper, or ours.
        place: where the paper has it.
        statistic: what one unit contributes, in words.
        measure: from an experiment's values to alternatives of comparisons; raises `NotMeasuredError` with a reason.
        effect: the bound, with its reason.
        direction: on which side of the bound the sentence puts the statistic; `"within"` is ± the bound about 0, or
            about a ratio of 1.
        scale: on which units are roughly normal: differences as they are, ratios in logarithms, correlations by Fisher,
            shares as the arcsine of their root.
        kind: `"tested"`; `"exact"` where theory or arithmetic leaves nothing to chance; `"spread"` where any of several
            choices may differ, and comparisons are the choices.
        resolution: the smallest difference that one unit's value can show; it is the least spread that is believed.
        implies: claims that must be true where this one is.
        ours: whether the sentence is ours and not the paper's.
    """

    id: str
    sentence: str
    place: str
    statistic: str
    measure: Callable[[Any], Alternatives] = field(repr=False)
    effect: Effect = ANY
    direction: Direction = "above"
    scale: Scale = "linear"
    kind: Kind = "tested"
    resolution: float = 0.0
    implies: tuple[str, ...] = ()
    ours: bool = False


@dataclass(frozen=True)
class ClaimComparison:
    """One comparison: its values, their average on the claim's scale with the unadjusted 95 % interval, and the two
    one-sided p-values."""

    name: str
    values: list[float | None]
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p_for: float | None = None
    p_against: float | None = None


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict: all that is needed to judge it again."""

    id: str
    sentence: str
    place: str
    ours: bool
    statistic: str
    kind: Kind
    scale: Scale
    direction: Direction
    bound: float
    bound_reason: str
    resolution: float
    implies: list[str]
    alternatives: list[list[ClaimComparison]]
    p_for: float | None
    p_against: float | None
    verdict: Verdict = "undecided"
    reason: str = ""
    paper: list[float] | None = None

    def as_json(self) -> dict[str, Any]:
        decisive = self.decisive
        return {**asdict(self), "decisive": None if decisive is None else asdict(decisive)}

    @property
    def decisive(self) -> ClaimComparison | None:
        """The comparison that the verdict rests on: the weakest of the strongest alternative; of choices, the range of
        their means, in the alternative where it is smallest."""
        if self.kind == "spread":
            tables = [np.array([c.values for c in one], dtype=float) for one in self.alternatives if complete([one])]
            ranges = [float(np.ptp(table.mean(1))) for table in tables]
            return ClaimComparison("range of the means over choices", [*ranges], min(ranges)) if ranges else None
        known = [one for one in self.alternatives if one and all(c.p_for is not None for c in one)]
        weakest = [max(one, key=lambda c: number_of(c.p_for)) for one in known]
        return min(weakest, key=lambda c: number_of(c.p_for)) if weakest else None


def complete(compared: Sequence[Sequence[ClaimComparison]]) -> bool:
    return bool(compared) and all(one and all(c.estimate is not None for c in one) for one in compared)


def number_of(value: float | None) -> float:
    assert value is not None
    return value
