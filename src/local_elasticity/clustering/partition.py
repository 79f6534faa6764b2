"""Several partitions of the same points, with the distances that kernel K-means needs kept up to date, and Hartigan's
improvement of them: single points are moved as long as that lowers the inertia.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

LEAST_GAIN = 1e-10
"""What a move must save, relative to Σ K_ii, to be more than rounding."""


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


def move_singly(K: Array, labels: Array, n_clusters: int, *, max_moves: int) -> Array:
    """Improve s partitions [s, n] together. In each round every one makes the move of i from A to B that changes its
    inertia most,

        |B|/(|B|+1) d(i, B) − |A|/(|A|−1) d(i, A),

    which is exact for any symmetric K, so that the inertia never rises. A cluster is never emptied.

    >>> import numpy as np
    >>> x = np.array([0.0, 0.1, 5.0, 5.1])
    >>> move_singly(np.outer(x, x), np.array([[0, 1, 1, 1]]), 2, max_moves=9)
    array([[0, 0, 1, 1]])
    """
    found = labels.copy()
    least = LEAST_GAIN * np.abs(K.diagonal()).sum()
    active = np.arange(len(labels))
    moves = SingleMoves(K, labels, n_clusters)
    for _ in range(max_moves):
        change, point, to = moves.best()
        going = change < -least
        if not going.all():
            found[active] = moves.labels
            active, point, to = active[going], point[going], to[going]
            moves.keep(going)
        if not len(active):
            break
        moves.make(point, to)
    found[active] = moves.labels
    return found


class SingleMoves(Partitions):
    """Partitions that also know the price of entering a cluster [s, c, n], infinite for one's own, and what leaving
    one's own saves [s, n]. A move touches two clusters, and so does its bookkeeping.
    """

    def __init__(self, K: Array, labels: Array, n_clusters: int) -> None:
        super().__init__(K, labels, n_clusters)
        self.entering, self.leaving = np.empty_like(self.sums), np.empty(labels.shape)
        for cluster in range(n_clusters):
            self._price(np.full(len(labels), cluster))

    def best(self) -> tuple[Array, Array, Array]:
        """For each partition how its best move changes the inertia, which point moves and where to."""
        change = (self.entering - self.leaving[:, None]).reshape(len(self.labels), -1)
        chosen = change.argmin(1)
        to, point = np.divmod(chosen, len(self.K))
        return change[np.arange(len(change)), chosen], point, to

    def make(self, point: Array, to: Array) -> None:
        """Move one point of each partition."""
        rows = np.arange(len(point))
        away = self.labels[rows, point]
        self.squares[rows, away] += self.own[point] - 2 * self.sums[rows, away, point]
        self.squares[rows, to] += self.own[point] + 2 * self.sums[rows, to, point]
        self.sums[rows, away] -= self.K[point]
        self.sums[rows, to] += self.K[point]
        self.sizes[rows, away] -= 1
        self.sizes[rows, to] += 1
        self.labels[rows, point] = to
        self._price(away)
        self._price(to)

    def keep(self, chosen: Array) -> None:
        super().keep(chosen)
        self.entering, self.leaving = self.entering[chosen], self.leaving[chosen]

    def _price(self, cluster: Array) -> None:
        """Prices of one cluster of each partition, [s]."""
        rows = np.arange(len(cluster))
        size = self.sizes[rows, cluster][:, None]
        distance = self.own - 2 / size * self.sums[rows, cluster] + self.squares[rows, cluster][:, None] / size**2
        inside = self.labels == cluster[:, None]
        self.entering[rows, cluster] = np.where(inside, np.inf, size / (size + 1) * distance)
        saved = np.where(size > 1, size / np.maximum(size - 1, 1) * distance, -np.inf)
        np.copyto(self.leaving, saved, where=inside)
