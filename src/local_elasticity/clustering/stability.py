"""How many clusters: the numbers at which networks of several seeds, on samples of the points, agree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import check_random_state

from local_elasticity.checks import check_count
from local_elasticity.clustering.estimator import LocalElasticityClustering, clusterer_of
from local_elasticity.clustering.from_similarity import Grouping

if TYPE_CHECKING:
    import pandas as pd

SHARE = 0.8
"""Of the points that every seed clusters."""

LEVEL = 0.05
"""Stabilities that differ by less count as equal."""


@dataclass(frozen=True)
class Stability:
    """How well clusterings agree, by the number of clusters; `le.clustering.stability` makes one.

    Attributes:
        n_clusters: the numbers that were tried.
        values: the mean adjusted Rand index between the clusterings of two seeds, at the points that both have.
        errors: their standard deviation over pairs of seeds.
        seeds: how many seeds.
    """

    n_clusters: tuple[int, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]
    seeds: int

    @property
    def best(self) -> int:
        """The largest number of clusters whose stability is within 0.05 of the highest. Few clusters are often as
        stable as the right number, because kinds are merged in the same way. It is right for about half of the data
        sets in docs/clustering.md; look at all values."""
        highest = max(self.values)
        return max(k for k, value in zip(self.n_clusters, self.values, strict=True) if value >= highest - LEVEL)

    def frame(self) -> pd.DataFrame:
        """One row for each number of clusters.

        Returns:
            A frame with `n_clusters`, `stability` and `error`.
        """
        import pandas as pd

        return pd.DataFrame({"n_clusters": self.n_clusters, "stability": self.values, "error": self.errors})

    def __repr__(self) -> str:
        told = ", ".join(f"{k}: {value:.2f}" for k, value in zip(self.n_clusters, self.values, strict=True))
        return f"stability over {self.seeds} seeds by number of clusters: {told}; best {self.best}"


def stability(
    model: LocalElasticityClustering,
    X: ArrayLike,
    n_clusters: Sequence[int] = range(2, 13),
    *,
    seeds: int = 5,
    auxiliary: str | ArrayLike | None = None,
) -> Stability:
    """How well clusterings of several seeds agree, for each number of clusters, without labels.

    A network is trained for each seed. Its similarity, among a sample of 80 % of the points, is clustered into each
    number of clusters. The stability is the mean adjusted Rand index of two seeds, at the points that both samples
    have: 1 where they always agree, about 0 where they agree by chance.

    Args:
        model: with the settings to use; it is not fitted. Its `n_clusters` and `random_state` are not used.
        X: the points, as for `model.fit`.
        n_clusters: the numbers to try, each at least 2.
        seeds: networks that are trained, at least 2.
        auxiliary: as for `model.fit`.

    Returns:
        A `Stability`: `.best`, `.frame()`.

    Raises:
        ValueError: what is wrong with an argument.

    >>> from sklearn.datasets import make_blobs
    >>> X, _ = make_blobs(90, centers=3, n_features=4, random_state=2)
    >>> model = LocalElasticityClustering(network="fnn-64", epochs=10)
    >>> stability(model, X, range(2, 6), seeds=3).best
    3
    """
    check_count("seeds", seeds, least=2)
    numbers = tuple(n_clusters)
    if not numbers:
        raise ValueError("n_clusters: expected at least one number of clusters to try, got none")
    for number in numbers:
        check_count("n_clusters", number, least=2)
    if model.approximation is not None:
        raise ValueError(
            f"approximation: expected None, got {model.approximation!r}; stability needs the whole similarity, so take "
            "a sample of the points"
        )
    sampled = []
    for seed in range(seeds):
        fitted = clone(model).set_params(n_clusters=numbers[0], random_state=seed).fit(X, auxiliary=auxiliary)
        S = fitted.similarity_
        if int(SHARE * len(S)) < max(numbers):
            raise ValueError(f"X: {len(S)} points are too few for {max(numbers)} clusters of a sample of {SHARE:.0%}")
        rows = np.sort(np.random.default_rng(seed).choice(len(S), int(SHARE * len(S)), replace=False))
        labels = [
            Grouping.of(S[np.ix_(rows, rows)], clusterer_of(fitted, k, check_random_state(seed))).labels
            for k in numbers
        ]
        sampled.append((rows, labels))
    found = np.array([_agreement(*one, *other) for one, other in itertools.combinations(sampled, 2)])
    spread = found.std(0, ddof=1) if len(found) > 1 else np.zeros(len(numbers))
    return Stability(numbers, tuple(found.mean(0).tolist()), tuple(spread.tolist()), seeds)


def _agreement(rows: np.ndarray, labels: list[np.ndarray], others: np.ndarray, theirs: list[np.ndarray]) -> list[float]:
    """The adjusted Rand index at the points that both have, for each number of clusters."""
    _, here, there = np.intersect1d(rows, others, return_indices=True)
    return [float(adjusted_rand_score(a[here], b[there])) for a, b in zip(labels, theirs, strict=True)]
