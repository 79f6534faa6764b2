"""K-means in the feature space of a kernel that is given as a matrix (He & Su, Algorithm 1, line 19)."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from local_elasticity.checks import check_choice, check_count
from local_elasticity.clustering.partition import Partitions, move_singly

Array = np.ndarray
SYMMETRIC = 1e-4
"""How far a kernel may be from symmetric, relative to its largest entry, before it is refused."""


class KernelKMeans(ClusterMixin, BaseEstimator):
    """Partition n points so that the points of a cluster C are close to its mean in the kernel's feature space:

        inertia = Σ_i d(i, C(i)),   d(i, C) = K_ii − 2/|C| Σ_{j∈C} K_ij + 1/|C|² Σ_{j,l∈C} K_jl.

    All starts are advanced together, one matrix product an iteration, and the best by inertia is kept. A cluster that
    runs empty takes the point that lies farthest from its own centre. For a kernel that is not positive semidefinite
    an iteration of Lloyd's may raise the inertia; the best partition of all iterations is kept. Moves
    of single points never raise it.

    Args:
        n_clusters: how many.
        init: `"k-means++"` (greedy, in feature space) or `"random"` labels, as the code released with the paper starts.
        algorithm: `"hartigan"` (Lloyd's iterations, then single points moved as long as that lowers the inertia) or
            `"lloyd"` alone, as released.
        n_init: starts.
        max_iter: iterations of every start.
        random_state: a seed, a RandomState or None.

    Attributes:
        labels_: [n], whole numbers from 0.
        inertia_: the objective of `labels_`.
        n_iter_: iterations of the start that won.
        inertias_: the objective that every start ended with, [n_init].

    >>> import numpy as np
    >>> x = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> model = KernelKMeans(n_clusters=2, random_state=0).fit(x @ x.T)
    >>> bool(model.labels_[0] == model.labels_[1] != model.labels_[2] == model.labels_[3])
    True
    >>> round(model.inertia_, 6), model.predict(np.array([[4.9]]) @ x.T) == model.labels_[2:3]
    (0.01, array([ True]))
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        init: Literal["k-means++", "random"] = "k-means++",
        algorithm: Literal["hartigan", "lloyd"] = "hartigan",
        n_init: int = 10,
        max_iter: int = 100,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.algorithm = algorithm
        self.n_init = n_init
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Cluster the points whose kernel is X, [n, n], symmetric.

        Args:
            X: the kernel, [n, n], symmetric.
            y: ignored.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if a parameter is invalid, or X is not square and symmetric.
        """
        self._check_parameters()
        K = _symmetric(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        if len(K) < self.n_clusters:
            raise ValueError(f"n_samples={len(K)} should be >= n_clusters={self.n_clusters}.")
        centred = _centred(K)
        random = check_random_state(self.random_state)
        if self.init == "random":
            starts = random.randint(self.n_clusters, size=(self.n_init, len(K)))
        else:
            starts = _nearest(centred, _seeds(centred, self.n_clusters, self.n_init, random))
        found, iterations = _lloyd(centred, starts, self.n_clusters, self.max_iter)
        if self.algorithm == "hartigan":
            found = move_singly(centred, found, self.n_clusters, max_moves=10 * len(K))
        self.inertias_ = Partitions(centred, found, self.n_clusters).inertia
        best = int(self.inertias_.argmin())
        self.labels_, self.inertia_, self.n_iter_ = found[best], float(self.inertias_[best]), int(iterations[best])
        final = Partitions(K, self.labels_[None], self.n_clusters)
        self._sizes, self._within = final.sizes[0], (final.squares / final.sizes**2)[0]
        return self

    def fit_predict(self, X: ArrayLike, y: ArrayLike | None = None) -> Array:
        """The labels of `fit`.

        Args:
            X: the kernel, [n, n], symmetric.
            y: ignored.

        Returns:
            The labels, [n].

        Raises:
            ValueError: as for `fit`.
        """
        return self.fit(X).labels_

    def predict(self, X: ArrayLike) -> Array:
        """The nearest cluster of new points, from their kernel with the fitted ones, [m, n].

        Args:
            X: the kernel of new points with the fitted ones, [m, n].

        Returns:
            The labels, [m].

        Raises:
            ValueError: if X has not n columns.
        """
        check_is_fitted(self)
        K = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(self._distances(K, 0.0).argmin(1))

    def distances(self, X: ArrayLike, *, diagonal: ArrayLike) -> Array:
        """Distances to the clusters' centres in feature space, [m, n_clusters], from the kernel of new points with the
        fitted ones [m, n] and of each new point with itself [m]; 0 if an indefinite kernel has a negative square.

        Args:
            X: the kernel of new points with the fitted ones, [m, n].
            diagonal: the kernel of each new point with itself, [m].

        Returns:
            The distances, [m, n_clusters].

        Raises:
            ValueError: if X has not n columns.
        """
        check_is_fitted(self)
        K = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(np.sqrt(self._distances(K, np.asarray(diagonal)[:, None]).clip(min=0)))

    def _distances(self, K: Array, own: Any) -> Array:
        members = (self.labels_[:, None] == np.arange(self.n_clusters)) / self._sizes
        return np.asarray(own - 2 * K @ members + self._within)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        return tags

    def _check_parameters(self) -> None:
        check_count("n_clusters", self.n_clusters)
        check_count("n_init", self.n_init)
        check_count("max_iter", self.max_iter)
        check_choice("init", self.init, ("k-means++", "random"))
        check_choice("algorithm", self.algorithm, ("hartigan", "lloyd"))


def _lloyd(K: Array, starts: Array, n_clusters: int, max_iter: int) -> tuple[Array, Array]:
    """Put every point of every start with its nearest centre until none moves. The best partition that each start met,
    [s, n], and how many iterations it took, [s].
    """
    current = np.stack([_repaired(row, np.zeros(len(K)), n_clusters) for row in starts])
    best, inertia = current.copy(), np.full(len(starts), np.inf)
    iterations, active = np.zeros(len(starts), dtype=int), np.arange(len(starts))
    partitions = Partitions(K, current, n_clusters)
    for iteration in range(max_iter + 1):
        better = partitions.inertia < inertia[active]
        best[active[better]], inertia[active[better]] = partitions.labels[better], partitions.inertia[better]
        if iteration == max_iter:
            break
        distances = partitions.distances()
        nearest = distances.argmin(1)
        for row, distance in zip(nearest, distances.min(1), strict=True):
            _repaired(row, distance, n_clusters)
        moved = (nearest != partitions.labels).any(1)
        active = active[moved]
        if not len(active):
            break
        iterations[active] += 1
        if not moved.all():
            partitions.keep(moved)
        partitions.reassign(nearest[moved])
    return best, iterations


def _repaired(labels: Array, apart: Array, n_clusters: int) -> Array:
    """Give every empty cluster the point farthest from its own centre, of those that are not alone; in place."""
    counts = np.bincount(labels, minlength=n_clusters)
    for empty in np.flatnonzero(counts == 0):
        moved = np.where(counts[labels] > 1, apart, -np.inf).argmax()
        counts[labels[moved]] -= 1
        counts[empty] += 1
        labels[moved] = empty
    return labels


def _seeds(K: Array, n_clusters: int, n_init: int, random: np.random.RandomState) -> Array:
    """Greedy k-means++ for all starts together: of a few candidates, drawn with probability proportional to the squared
    distance from the seeds so far, the one that lowers their sum most; [n_init, n_clusters].
    """
    own, trials = K.diagonal(), 2 + int(np.log(n_clusters))
    seeds = np.empty((n_init, n_clusters), dtype=int)
    seeds[:, 0] = random.randint(len(K), size=n_init)
    apart = _apart(K, own, seeds[:, 0])
    for cluster in range(1, n_clusters):
        total = apart.cumsum(1)
        drawn = random.uniform(size=(n_init, trials)) * total[:, -1:]
        candidates = np.stack([np.searchsorted(row, at) for row, at in zip(total, drawn, strict=True)])
        candidates = candidates.clip(max=len(K) - 1)
        after = np.minimum(apart[:, None], _apart(K, own, candidates.ravel()).reshape(n_init, trials, -1))
        chosen = after.sum(2).argmin(1)
        seeds[:, cluster] = np.take_along_axis(candidates, chosen[:, None], 1)[:, 0]
        apart = np.take_along_axis(after, chosen[:, None, None], 1)[:, 0]
    return seeds


def _apart(K: Array, own: Array, points: Array) -> Array:
    """Squared distances in feature space from some points to all, [len(points), n]; rounding below zero is cut off."""
    return np.asarray((own[points, None] + own - 2 * K[points]).clip(min=0))


def _nearest(K: Array, seeds: Array) -> Array:
    """Every point with its nearest seed, [s, n]."""
    return np.asarray((K.diagonal()[seeds][:, :, None] - 2 * K[seeds]).argmin(1))


def _symmetric(K: Array) -> Array:
    if K.shape[0] != K.shape[1]:
        raise ValueError(f"X: expected a square kernel matrix, got shape {K.shape}")
    if np.abs(K - K.T).max() > SYMMETRIC * np.abs(K).max():
        raise ValueError("X: the kernel is not symmetric; pass (K + K.T) / 2, as le.symmetrized does")
    return np.asarray((K + K.T) / 2)


def _centred(K: Array) -> Array:
    """The kernel of the same points about their mean, which no distance depends on and rounding does."""
    mean = K.mean(0)
    return np.asarray(K - mean - mean[:, None] + mean.mean())
