"""Hartigan's improvement of a partition: single points moved, as long as that lowers the inertia of kernel K-means."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
LEAST_GAIN = 1e-10
"""What a move must save, relative to Σ K_ii, to be more than rounding."""


def move_singly(K: Array, labels: Array, n_clusters: int, max_moves: int) -> tuple[Array, Array]:
    """Improve s partitions [s, n] together; the partitions and how far each inertia fell, [s].

    In each round every partition makes the one move of i from A to B that changes its inertia most,

        |B|/(|B|+1) d(i, B) − |A|/(|A|−1) d(i, A),

    which for any symmetric K is exact, so that nothing is ever lost. A cluster is never emptied.

    >>> import numpy as np
    >>> x = np.array([0.0, 0.1, 5.0, 5.1])
    >>> labels, fell = move_singly(np.outer(x, x), np.array([[0, 1, 1, 1]]), 2, max_moves=9)
    >>> labels, fell.round(6)
    (array([[0, 0, 1, 1]]), array([16.336667]))
    """
    labels, fell = labels.copy(), np.zeros(len(labels))
    least = LEAST_GAIN * np.abs(K.diagonal()).sum()
    active = np.arange(len(labels))
    moves = _Moves(K, labels, n_clusters)
    for _ in range(max_moves):
        change, point, to = moves.best()
        going = change < -least
        if not going.all():
            labels[active] = moves.labels
            active, change, point, to = active[going], change[going], point[going], to[going]
            if not len(active):
                break
            moves.keep(going)
        moves.make(point, to)
        fell[active] -= change
    labels[active] = moves.labels[: len(active)]
    return labels, fell


class _Moves:
    """Partitions on their way: cluster sizes [s, c], Σ_{j∈C} K_ij [s, c, n], Σ_{j,l∈C} K_jl [s, c], and the price of
    entering a cluster [s, c, n], infinite for one's own. A move touches two clusters only, and so does its bookkeeping.
    """

    def __init__(self, K: Array, labels: Array, n_clusters: int) -> None:
        self.K, self.own, self.labels = K, K.diagonal(), labels.copy()
        members = (labels[:, None] == np.arange(n_clusters)[:, None]).astype(K.dtype)
        self.sizes = members.sum(2)
        self.sums = (members.reshape(-1, len(K)) @ K).reshape(members.shape)
        self.squares = np.einsum("scn,scn->sc", members, self.sums)
        self.entering = np.empty_like(self.sums)
        self.leaving = np.empty(labels.shape)
        for cluster in range(n_clusters):
            self._refresh(np.full(len(labels), cluster))

    def best(self) -> tuple[Array, Array, Array]:
        """For each partition the change of its best move, the point and where to."""
        change = (self.entering - self.leaving[:, None]).reshape(len(self.labels), -1)
        chosen = change.argmin(1)
        to, point = np.divmod(chosen, len(self.K))
        return change[np.arange(len(change)), chosen], point, to

    def make(self, point: Array, to: Array) -> None:
        rows = np.arange(len(point))
        away = self.labels[rows, point]
        self.squares[rows, away] += self.own[point] - 2 * self.sums[rows, away, point]
        self.squares[rows, to] += self.own[point] + 2 * self.sums[rows, to, point]
        self.sums[rows, away] -= self.K[point]
        self.sums[rows, to] += self.K[point]
        self.sizes[rows, away] -= 1
        self.sizes[rows, to] += 1
        self.labels[rows, point] = to
        self._refresh(away)
        self._refresh(to)

    def keep(self, going: Array) -> None:
        for name in ("labels", "sizes", "sums", "squares", "entering", "leaving"):
            setattr(self, name, getattr(self, name)[going])

    def _refresh(self, cluster: Array) -> None:
        """Prices of one cluster in each partition, [s]."""
        rows = np.arange(len(cluster))
        size = self.sizes[rows, cluster][:, None]
        apart = self.own - 2 / size * self.sums[rows, cluster] + self.squares[rows, cluster][:, None] / size**2
        inside = self.labels == cluster[:, None]
        self.entering[rows, cluster] = np.where(inside, np.inf, size / (size + 1) * apart)
        alone = np.where(size > 1, size / np.maximum(size - 1, 1) * apart, -np.inf)
        self.leaving = np.where(inside, alone, self.leaving)
