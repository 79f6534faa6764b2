"""From similarities to clusters: symmetrise, normalise, cluster the points that moved, and put the others with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans

from local_elasticity.clustering.kernel_kmeans import KernelKMeans

logger = logging.getLogger("local_elasticity")

Array = np.ndarray
TINY = float(np.finfo(np.float64).tiny)


class UnusableSimilarityError(ValueError):
    """A similarity that nothing can be clustered by; it says why."""


@dataclass(frozen=True)
class Grouping:
    """Points grouped by K-means on the rows of their similarities, or by kernel K-means.

    Attributes:
        S: symmetrised and, where asked for, normalised, [n, n]; NaN among points that did not move.
        own: the diagonal before normalising, [n]; the median of the others for points that did not move.
        known: which points moved, [n].
        clusters: fitted on those; labels: of all, [n].
    """

    S: Array
    own: Array
    known: Array
    clusters: KMeans | KernelKMeans
    labels: Array
    normalises: bool

    @classmethod
    def of(cls, S: Array, clusters: KMeans | KernelKMeans, *, normalises: bool = False) -> Grouping:
        """Group n points by S as it was read, [n, n], rows that did not move NaN.

        >>> import numpy as np
        >>> S = np.kron(np.eye(2), np.ones((2, 2)))
        >>> S[3] = np.nan  # the others' steps still tell where it belongs
        >>> labels = Grouping.of(S, KernelKMeans(2, random_state=0)).labels
        >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
        True
        """
        known = np.isfinite(S).all(1)
        check_moved(known, clusters.n_clusters)
        S = _symmetrised(np.where(known[:, None], S, np.nan))
        own = np.where(known, S.diagonal(), np.median(S.diagonal()[known]))
        S = S / _root(own)[:, None] / _root(own) if normalises else S
        clusters.fit(S[np.ix_(known, known)])
        labels = np.empty(len(S), dtype=np.int64)
        labels[known] = clusters.labels_
        if not known.all():
            labels[~known] = clusters.predict(S[np.ix_(~known, known)])
        return cls(S, own, known, clusters, labels, normalises)

    def predict(self, S: Array, own: Array) -> Array:
        """The clusters of new points, from their similarities with all n, [m, n], and with themselves, [m]."""
        return np.asarray(self.clusters.predict(self._rows(S, own)[0]))

    def distances(self, S: Array, own: Array) -> Array:
        """From new points to the centres of the clusters, [m, clusters]."""
        rows, diagonal = self._rows(S, own)
        if isinstance(self.clusters, KernelKMeans):
            return self.clusters.distances(rows, diagonal=diagonal)
        return np.asarray(self.clusters.transform(rows))

    def _rows(self, S: Array, own: Array) -> tuple[Array, Array]:
        own = np.where(np.isfinite(own), own, np.median(self.own))
        if self.normalises:
            S, own = S / _root(own)[:, None] / _root(self.own), np.ones_like(own)
        return S[:, self.known], own


def check_moved(known: Array, n_clusters: int) -> None:
    """Refuse to cluster where too few points moved under a step on themselves; say how many did not, otherwise."""
    if known.sum() < max(n_clusters, 2):
        raise UnusableSimilarityError(
            f"X: only {known.sum()} of {len(known)} points moved under a step on themselves: their gradients vanish, "
            "because the network fits them exactly or its units are all off, or the step is lost in rounding; "
            "take fewer epochs, another loss or network, or a larger step_size"
        )
    if not known.all():
        logger.warning("%d of %d points did not move under a step on themselves", (~known).sum(), len(known))


def _symmetrised(S: Array) -> Array:
    """(S + Sᵀ)/2 (Algorithm 1, line 18), or the one direction that there is."""
    both = np.stack([S, S.T])
    count = np.isfinite(both).sum(0)
    return np.asarray(np.divide(np.nansum(both, 0), count, out=np.full_like(S, np.nan), where=count > 0))


def _root(own: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(own, TINY)))
