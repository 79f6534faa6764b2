"""The confusion matrix of the model beside its class matrix, and whether the two go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.report.pairs import Pairs
from local_elasticity.report.run import Panel, Run, shown
from local_elasticity.statistics.confusion import confusion, rank_agreement
from local_elasticity.words import number, p_value, percent

MOST_CLASSES = 30
"""Of more classes no table is drawn."""


@dataclass(frozen=True)
class Confused:
    """What the page shows of predictions.

    Attributes:
        classes: of rows (the class) and columns (what is predicted).
        counts: how many examples, [a, b].
        sentences: the share that is right, and the rank correlation with each measure.
    """

    classes: Sequence[str]
    counts: Sequence[Sequence[int]]
    sentences: Sequence[str]


def confused(run: Run, pairs: Sequence[Pairs | None]) -> Confused | None:
    """The confusion matrix of the targets; None where classes or predictions are not known, or classes are many."""
    side, classes = run.targets, run.classes
    if side.predictions is None or side.classes is None or classes is None or len(classes) > MOST_CLASSES:
        return None
    labels, predictions = (np.array([shown(one) for one in values]) for values in (side.classes, side.predictions))
    counts = confusion(classes, labels, predictions)
    right = int((labels == predictions).sum())
    other = len(labels) - int(counts.sum())
    told = [f"{right:,} of {len(labels):,} targets ({percent(right / len(labels))}) are predicted as their class."]
    told += [f"{other:,} are predicted as a class that is not shown here."] if other else []
    if not (counts - np.diag(np.diag(counts))).any():
        return Confused(classes, counts.tolist(), [*told, "No class is confused with another, so nothing is compared."])
    told += [_compared(panel, pair, counts) for panel, pair in zip(run.panels, pairs, strict=True) if pair is not None]
    return Confused(classes, counts.tolist(), told)


def _compared(panel: Panel, pairs: Pairs, counts: np.ndarray) -> str:
    found = rank_agreement(counts, pairs.median[-1])
    name = shown(panel.title or panel.measure)
    if not np.isfinite(found.correlation):
        return f"{name}: {found.pairs} pairs of classes are too few for a rank correlation."
    return (
        f"{name}: the share of class a that is predicted as b, and how far a step on b moves a, have a rank "
        f"correlation of {number(found.correlation)} over {found.pairs} pairs of different classes (permuted classes: "
        f"p {p_value(found.p_value, found.p_floor)})."
    )
