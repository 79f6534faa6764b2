"""Medians over the pairs of every two classes, again and again: in bootstrap resamples, and with permuted classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.bootstrap import redrawn

MOST_EXAMPLES = 160
"""The most sources, and targets, that resamples and permutations are computed from; of more, a random sample."""

ZERO = 1e-3
"""What a value of 0 counts as where logarithms are taken, as a multiple of the smallest value above 0."""


@dataclass(frozen=True)
class ClassBlocks:
    """A matrix whose pairs are grouped by the classes of rows and columns.

    Attributes:
        ranks: for every pair, its place among the sorted known values; −1 where there is no value, [n, m].
        ordered: the known values in rising order.
        rows, columns: classes as whole numbers.
        labels: the class of every number.
        square: whether the targets are the sources; an example with itself does not count then.
    """

    ranks: np.ndarray
    ordered: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    labels: list[object]
    square: bool

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        square: bool,
        rng: np.random.Generator,
        *,
        logarithms: bool = True,
    ) -> ClassBlocks:
        """Of at most MOST_EXAMPLES examples, sampled class by class in proportion; by default of logarithms.

        >>> classes = np.array(["a", "b"])
        >>> blocks = ClassBlocks.of(np.eye(2), classes, classes, False, np.random.default_rng(0))
        >>> blocks.medians(blocks.rows, blocks.columns).tolist()
        [[0.0, -6.907755278982137], [-6.907755278982137, 0.0]]
        """
        labels = list(dict.fromkeys([*rows.tolist(), *columns.tolist()]))
        codes = {label: code for code, label in enumerate(labels)}
        rows, columns = (np.array([codes[label] for label in one.tolist()], dtype=int) for one in (rows, columns))
        i = sampled(rows, rng)
        j = i if square else sampled(columns, rng)
        some = values[np.ix_(i, j)].astype(float)
        if logarithms:
            smallest = np.min(some[some > 0], initial=np.inf)
            with np.errstate(divide="ignore", invalid="ignore"):
                some = np.where(
                    some >= 0, np.log(np.maximum(some, ZERO * smallest if np.isfinite(smallest) else 1.0)), np.nan
                )
        if square:
            np.fill_diagonal(some, np.nan)
        known = ~np.isnan(some)
        order = np.argsort(some[known], kind="stable")
        ranks = np.full(some.shape, -1)
        ranks[known] = np.argsort(order, kind="stable")
        return cls(ranks, some[known][order], rows[i], columns[j], labels, square)

    @property
    def count(self) -> int:
        """How many classes there are."""
        return len(self.labels)

    def medians(self, rows: np.ndarray, columns: np.ndarray, ranks: np.ndarray | None = None) -> np.ndarray:
        """The median over the pairs of every two classes, [K, K]; NaN where there is none."""
        ranks = self.ranks if ranks is None else ranks
        known, many = ranks >= 0, max(1, len(self.ordered))
        keys = np.sort((rows[:, None] * self.count + columns)[known] * many + ranks[known])
        at, values = keys // many, self.ordered[keys % many]
        starts, ends = (np.searchsorted(at, np.arange(self.count**2), side) for side in ("left", "right"))
        found = np.full(self.count**2, np.nan)
        full = ends > starts
        low, high = (starts[full] + ends[full] - 1) // 2, (starts[full] + ends[full]) // 2
        found[full] = (values[low] + values[high]) / 2
        return found.reshape(self.count, self.count)

    def resampled(self, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """The medians with sources and targets drawn again within their classes."""
        for i, j in redrawn(rng, self.rows, self.columns, resamples, square=self.square):
            yield self.medians(self.rows[i], self.columns[j], self.ranks[np.ix_(i, j)])

    def permuted(self, permutations: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """The medians with classes permuted; an example keeps one class as a source and as a target."""
        for _ in range(permutations):
            columns = rng.permutation(self.columns)
            yield self.medians(columns if self.square else self.rows, columns)


def sampled(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At most MOST_EXAMPLES places in rising order; at least two of each class, where it has them."""
    if len(classes) <= MOST_EXAMPLES:
        return np.arange(len(classes))
    chosen = []
    for one in np.unique(classes):
        members = np.flatnonzero(classes == one)
        many = min(len(members), max(2, len(members) * MOST_EXAMPLES // len(classes)))
        chosen.append(rng.choice(members, many, replace=False))
    return np.sort(np.concatenate(chosen))
