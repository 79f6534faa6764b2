"""What a fit found, and where new points belong: by similarities among all points, or by features of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from local_elasticity.clustering.approximate import Features, clustered
from local_elasticity.clustering.from_similarity import Grouping, check_moved
from local_elasticity.clustering.kernel_kmeans import KernelKMeans
from local_elasticity.clustering.probe import SimilarityProbe
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

    probe: SimilarityProbe
    net: nn.Module
    x: Tensor
    grouping: Grouping

    @classmethod
    def of(
        cls,
        probe: SimilarityProbe,
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
    """Clusters by K-means on features, about their mean, in a time that grows with n alone.

    Attributes:
        found: the features of the fitted points, [n, components].
        own: their similarities with themselves, [n]; NaN for points that did not move.
        clusters: of those that moved.
        error: of the features, against the full similarity.
    """

    features: Features
    found: Array
    own: Array
    centre: Array
    clusters: KMeans
    error: float

    @classmethod
    def of(
        cls,
        kind: str,
        probe: SimilarityProbe,
        net: nn.Module,
        x: Tensor,
        clusterer: KMeans,
        *,
        count: int | None,
        normalises: bool,
        seed: int,
    ) -> ByFeatures:
        """Of the points x, by `"landmarks"` or a `"sketch"` of `count` components."""
        own = probe.own(net, x).double().cpu().numpy()
        known = np.isfinite(own)
        check_moved(known, clusterer.n_clusters)
        moved = x[torch.from_numpy(known).to(x.device)]
        usual = float(np.median(own[known])) if normalises else None
        features = Features.of(kind, probe, net, moved, count=count, seed=seed, usual=usual)
        found = features(x)
        centre = found[known].mean(0)
        clusters = clustered(found[known] - centre, clusterer)
        return cls(features, found, own, centre, clusters, features.error(moved, seed=seed + 1))

    @property
    def inertia(self) -> float:
        """The objective that the full similarity would have for these clusters: rows have all n columns; landmarks see
        a part of each K(x, x), and with the rest of it this is never below; a sketch keeps distances as they are.
        """
        known, seen = np.isfinite(self.own), float(self.clusters.inertia_)
        if self.features.probe.relative:
            return seen * int(known.sum())
        if self.features.landmarks is None:
            return seen
        own = self.own[known] if self.features.usual is None else np.ones(int(known.sum()))
        return seen + float(own.sum() - np.square(self.found[known]).sum())

    def attributes(self) -> dict[str, Any]:
        return {
            "labels_": self._nearest(self.found),
            "features_": self.found,
            "approximation_error_": self.error,
            "inertia_": self.inertia,
            "unresolved_": int(np.isnan(self.own).sum()),
        }

    def predict(self, x: Tensor) -> Array:
        return self._nearest(self.features(x))

    def distances(self, x: Tensor) -> Array:
        return np.asarray(self.clusters.transform(self.features(x) - self.centre))

    def _nearest(self, features: Array) -> Array:
        return np.asarray(self.clusters.predict(features - self.centre), dtype=np.int64)
