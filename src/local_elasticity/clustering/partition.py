"""Several partitions of the same points, with the distances that kernel K-means needs kept up to date."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


class Partitions:
    """s partitions of n points into c clusters, none of them empty, in the feature space of K [n, n], symmetric.

    Kept of every cluster C: its size |C| [s, c], Σ_{j∈C} K_ij [s, c, n] and Σ_{j,l∈C} K_jl [s, c]. From these

        d(i, C) = K_ii − 2/|C| Σ_{j∈C} K_ij + 1/|C|² Σ_{j,l∈C} K_jl,   inertia = Σ_i K_ii − Σ_C 1/|C| Σ_{j,l∈C} K_jl.

    >>> import numpy as np
    >>> x = np.array([0.0, 0.1, 5.0, 5.1])
    >>> partitions = Partitions(np.outer(x, x), np.array([[0, 0, 1, 1]]), 2)
    >>> partitions.inertia.round(6), partitions.distances()[0, 0].round(4)
    (array([0.01]), array([2.50000e-03, 2.50000e-03, 2.45025e+01, 2.55025e+01]))
    """

    def __init__(self, K: Array, labels: Array, n_clusters: int) -> None:
        self.K, self.own, self.labels = K, K.diagonal(), labels.copy()
        self.clusters = np.arange(n_clusters)
        members = self._members(labels)
        self.sizes = members.sum(2)
        self.sums = np.tensordot(members, K, 1)
        self._square()

    @property
    def inertia(self) -> Array:
        return np.asarray(self.own.sum() - (self.squares / self.sizes).sum(1))

    def distances(self) -> Array:
        """d(i, C), [s, c, n]."""
        size = self.sizes[:, :, None]
        distance = self.sums * (-2 / size)
        distance += self.squares[:, :, None] / size**2
        distance += self.own
        return np.asarray(distance)

    def reassign(self, labels: Array) -> None:
        """Put other labels [s, n] in place; only the points that changed are multiplied with K."""
        changed = np.flatnonzero((labels != self.labels).any(0))
        entered = self._members(labels[:, changed]) - self._members(self.labels[:, changed])
        self.labels = labels.copy()
        self.sizes += entered.sum(2)
        self.sums += np.tensordot(entered, self.K[changed], 1)
        self._square()

    def keep(self, chosen: Array) -> None:
        """Keep some of the partitions."""
        for name in ("labels", "sizes", "sums", "squares"):
            setattr(self, name, getattr(self, name)[chosen])

    def _members(self, labels: Array) -> Array:
        return np.asarray(labels[:, None] == self.clusters[:, None], dtype=self.K.dtype)

    def _square(self) -> None:
        """Σ_{i∈C} of the sums."""
        inside = np.take_along_axis(self.sums, self.labels[:, None], 1)[:, 0]
        at = self.labels + len(self.clusters) * np.arange(len(self.labels))[:, None]
        self.squares = np.bincount(at.ravel(), inside.ravel(), self.sizes.size).reshape(self.sizes.shape)
