"""Similarities of pairs of classes over time: medians with the middle half of the pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from local_elasticity.report.run import Panel, Run, shown
from local_elasticity.statistics.class_pairs import ReadPairs
from local_elasticity.statistics.locality import quartiles, quotient, within_and_between

MOST_CLASSES = 100
"""With more classes, pairs of classes are not summed up."""


@dataclass(frozen=True)
class Pairs:
    """Medians and quartiles over the pairs of every two classes, [t, a, b]; NaN where there are none.

    `within` and `between` are medians over all pairs of equal and of different classes, [t], and `bands` their
    quartiles; `ratio` is between over within: 1 where a step moves all classes alike, 0 where it moves its own alone
    (`statistics.locality`).
    """

    classes: list[str]
    low: np.ndarray
    median: np.ndarray
    high: np.ndarray
    within: np.ndarray
    between: np.ndarray
    bands: dict[str, np.ndarray]

    @property
    def ratio(self) -> np.ndarray:
        return np.asarray(quotient(self.between, self.within))


def pairs_of(run: Run, panel: Panel) -> Pairs | None:
    """The class pairs of one measure; None where classes are not known or too many. An example with itself does not
    count.
    """
    classes = run.classes
    if classes is None or len(classes) > MOST_CLASSES or run.sources.classes is None or run.targets.classes is None:
        return None
    rows, columns = _labels(run)
    values = panel.values.astype(np.result_type(panel.values.dtype, np.float32))
    if run.square:
        each = np.arange(len(rows))
        values[:, each, each] = np.nan
    found = np.full((3, len(values), len(classes), len(classes)), np.nan)
    for a, source in enumerate(classes):
        block = values[:, rows == source]
        for b, target in enumerate(classes):
            found[:, :, a, b] = quartiles(block[:, :, columns == target].reshape(len(values), -1))
    pooled = np.array([within_and_between(one, rows, columns, square=run.square) for one in values])
    within, between = np.moveaxis(pooled, 0, -1)
    bands = {"within_low": within[0], "within_high": within[2], "between_low": between[0], "between_high": between[2]}
    return Pairs(classes, found[0], found[1], found[2], within[1], between[1], bands)


def read_last(run: Run, panel: Panel) -> ReadPairs:
    """The last matrix with its classes, as the statistics take it."""
    return panel.values[-1], *_labels(run), None, run.square


def _labels(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """The classes of rows and columns, as the page shows them."""
    assert run.sources.classes is not None
    assert run.targets.classes is not None
    rows, columns = (np.array([shown(label) for label in one]) for one in (run.sources.classes, run.targets.classes))
    return rows, columns
