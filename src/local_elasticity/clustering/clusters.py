"""What a fit found, and where new points belong: by similarities among all points, or by features of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.cluster import KMeans
from torch import Tensor, nn

from local_elasticity.clustering.approximate import Features, clustered
from local_elasticity.clustering.grouping import Grouping
from local_elasticity.clustering.kernel_kmeans import KernelKMeans
from local_elasticity.clustering.probe import Probe
from local_elasticity.clustering.warm_up import Training

Array = np.ndarray


class Clusters(Protocol):
    """Clusters of the fitted points. They know all that they need of how they were found."""

    def attributes(self) -> dict[str, Any]:
        """What the estimator shows of them, by name."""

    def predict(self, x: Tensor) -> Array:
        """The clusters of new points, [m]."""

    def distances(self, x: Tensor) -> Array:
        """From new points to the clusters' centres, [m, clusters]."""


@dataclass(frozen=True)
class BySimilarity:
    """Clusters by the similarities of all n points x, which a probe reads off a network."""

    probe: Probe
    net: nn.Module
    x: Tensor
    grouping: Grouping

    @classmethod
    def of(
        cls,
        probe: Probe,
        net: nn.Module,
        training: Training,
        clusterer: KMeans | KernelKMeans,
        *,
        passes: int | None,
        normalises: bool,
    ) -> BySimilarity:
        """At the network's weights as they are, or along `passes` walks from there (Algorithm 1)."""
        x = training.primary
        if passes is None:
            S = probe.frozen(net, x)
        else:
            S = probe.in_sequence(net, training.x, training.y, orders=training.orders(passes))
        return cls(probe, net, x, Grouping.of(S.double().cpu().numpy(), clusterer, normalises=normalises))

    def attributes(self) -> dict[str, Any]:
        return {
            "labels_": self.grouping.labels,
            "similarity_": self.grouping.S,
            "inertia_": float(self.grouping.clusters.inertia_),
            "unresolved_": int((~self.grouping.known).sum()),
        }

    def predict(self, x: Tensor) -> Array:
        return self.grouping.predict(*self._similarities(x))

    def distances(self, x: Tensor) -> Array:
        return self.grouping.distances(*self._similarities(x))

    def _similarities(self, x: Tensor) -> tuple[Array, Array]:
        """Of new points with the fitted ones [m, n], and with themselves [m], at the network's weights."""
        S, own = self.probe.between(self.net, x, self.x)
        return S.double().cpu().numpy(), own.double().cpu().numpy()


@dataclass(frozen=True)
class ByFeatures:
    """Clusters by K-means on features, about their mean, in a time that grows with n alone."""

    features: Features
    found: Array
    centre: Array
    clusters: KMeans
    error: float

    @classmethod
    def of(
        cls, features: Features, x: Tensor, n_clusters: int, *, n_init: int, seed: int, random: np.random.RandomState
    ) -> ByFeatures:
        """Of the points x; `seed` draws those on which the features are held against the full similarity."""
        found = features(x)
        centre = found.mean(0)
        clusters = clustered(found - centre, n_clusters, n_init, random)
        return cls(features, found, centre, clusters, features.error(x, seed=seed))

    def attributes(self) -> dict[str, Any]:
        return {
            "labels_": self.clusters.labels_.astype(np.int64),
            "features_": self.found,
            "approximation_error_": self.error,
            "inertia_": float(self.clusters.inertia_),
            "unresolved_": self.features.unresolved,
        }

    def predict(self, x: Tensor) -> Array:
        return np.asarray(self.clusters.predict(self.features(x) - self.centre))

    def distances(self, x: Tensor) -> Array:
        return np.asarray(self.clusters.transform(self.features(x) - self.centre))
