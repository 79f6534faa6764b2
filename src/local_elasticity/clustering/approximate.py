"""Feature maps whose inner products are nearly the similarities, so that the cost of clustering grows with n alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans
from torch import Tensor, nn

from local_elasticity.clustering.probe import SimilarityProbe
from local_elasticity.engine.memory import budget_of
from local_elasticity.engine.problem import Problem
from local_elasticity.scale.landmarks import drawn, inverse_root
from local_elasticity.scale.sketch import gradient_sketch

Array = np.ndarray
COMPONENTS = {"landmarks": 256, "sketch": 2048}
"""Features unless a number is given."""

AT_ONCE = 4096
"""Points whose features are computed at once."""

MEMORY = 2 << 30
"""Bytes that features are computed in, at most."""

EXAMINED = 256
"""Points on which the features are compared with the full similarity."""

BATCH = 4096
"""Points in a step of K-means."""


@dataclass(frozen=True)
class Features:
    """What points look like to K-means: `landmarks` [l, …] with the inverse root of their kernel [l, r] (None for rows
    of relative similarities), or a sketch of `count` numbers where there are no landmarks. Where the kernel is
    normalised, `usual` stands in for the self-similarity of points that do not move under a step on themselves.
    """

    probe: SimilarityProbe
    net: nn.Module
    count: int
    seed: int
    usual: float | None = None
    landmarks: Tensor | None = None
    root: Tensor | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        probe: SimilarityProbe,
        net: nn.Module,
        x: Tensor,
        *,
        count: int | None,
        seed: int,
        usual: float | None,
    ) -> Features:
        """By `"landmarks"` drawn from points x that move under a step on themselves, or a `"sketch"`."""
        count = int(count or COMPONENTS[kind])
        if kind == "sketch":
            return cls(probe, net, count, seed, usual)
        few = x[drawn(len(x), count, seed).to(x.device)]
        W = probe.frozen(net, few)
        root = None if probe.relative else inverse_root(W) if usual is None else _normalized_root(W)
        return cls(probe, net, len(few), seed, usual, few, root)

    def __call__(self, x: Tensor) -> Array:
        """[b, features], in float64 for K-means."""
        parts = [self._of(part) for part in x.split(AT_ONCE)]
        return np.asarray(torch.cat(parts).double().cpu().numpy())

    def error(self, x: Tensor, *, seed: int) -> float:
        """‖G − Φ Φᵀ‖ / ‖G‖ on some of the points x, both centred, since K-means sees differences alone; G is the full
        similarity among them, or ⟨row, row′⟩ of relative ones.
        """
        some = x[drawn(len(x), EXAMINED, seed).to(x.device)]
        S, features = self.probe.frozen(self.net, some).double(), torch.from_numpy(self(some)).to(x.device)
        S = (S + S.T) / 2
        if self.usual is not None:
            S = S / _root(S.diagonal())[:, None] / _root(S.diagonal())
        full = _centred(S @ S.T / len(S) if self.probe.relative else S)
        return float((full - _centred(features @ features.T)).norm() / full.norm())

    def _of(self, x: Tensor) -> Tensor:
        memory = min(MEMORY, budget_of(None, x.device))
        if self.landmarks is None:
            phi = gradient_sketch(
                Problem.of(self.net, self.probe.loss), x, dimension=self.count, seed=self.seed, memory=memory
            )
        elif self.root is None:
            phi = self.probe.between(self.net, x, self.landmarks, memory=memory)[0] / math.sqrt(self.count)
        else:
            phi = self.probe.towards(self.net, self.landmarks, x, memory=memory).T @ self.root
        if self.usual is None:
            return phi
        own = self.probe.own(self.net, x, memory=memory).nan_to_num(self.usual)
        return phi / _root(own)[:, None]


def clustered(features: Array, clusterer: KMeans) -> KMeans:
    """K-means in minibatches, the best of the clusterer's starts, and then on all points until none moves; all of it
    linear in their number.
    """
    count, starts, random = clusterer.n_clusters, clusterer.n_init, clusterer.random_state
    rough = MiniBatchKMeans(count, n_init=starts, batch_size=BATCH, random_state=random).fit(features)
    return KMeans(count, init=rough.cluster_centers_, n_init=1).fit(features)


def _normalized_root(W: Tensor) -> Tensor:
    """The inverse root of the normalised kernel, for rows that are normalised on their own side alone."""
    size = _root(W.diagonal())[:, None]
    return inverse_root(W / size / size.T) / size


def _root(own: Tensor) -> Tensor:
    return own.clamp_min(torch.finfo(own.dtype).tiny).sqrt()


def _centred(K: Tensor) -> Tensor:
    mean = K.mean(0)
    return K - mean - mean[:, None] + mean.mean()
