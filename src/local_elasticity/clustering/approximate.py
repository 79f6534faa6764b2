"""Feature maps whose inner products are nearly the similarities, so that the cost of clustering grows with n alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans
from torch import Tensor, nn

from local_elasticity.clustering.probe import Probe
from local_elasticity.engine.memory import budget_of
from local_elasticity.engine.problem import Problem
from local_elasticity.scale.landmarks import drawn, inverse_root
from local_elasticity.scale.sketch import gradient_sketch

Array = np.ndarray
COMPONENTS = {"landmarks": 256, "sketch": 2048}
"""Features unless a number is given."""

AT_ONCE = 4096
"""Points whose features are computed in a go."""

MEMORY = 2 << 30
"""Bytes that features are computed in, at most."""

EXAMINED = 256
"""Points on which the features are compared with the full similarity."""

BATCH = 4096
"""Points in a step of K-means."""


@dataclass(frozen=True)
class Features:
    """What points look like to K-means: `landmarks` [l, …] with the inverse root of their kernel [l, r] (None for rows
    of relative similarities), or a sketch of `count` numbers where there are no landmarks.
    """

    probe: Probe
    net: nn.Module
    count: int
    seed: int
    normalises: bool
    landmarks: Tensor | None = None
    root: Tensor | None = None
    unresolved: int = 0

    @classmethod
    def of(
        cls, kind: str, probe: Probe, net: nn.Module, x: Tensor, *, count: int | None, seed: int, normalises: bool
    ) -> Features:
        """By `"landmarks"` drawn from x, without those that do not move under a step on themselves, or a `"sketch"`."""
        count = count or COMPONENTS[kind]
        if kind == "sketch":
            return cls(probe, net, count, seed, normalises)
        few = x[drawn(len(x), count, seed).to(x.device)]
        W = probe.frozen(net, few)
        moved = W.isfinite().all(1)
        if not moved.any():
            raise ValueError(
                "X: none of the landmarks moved under a step on itself; take fewer epochs, another loss or another "
                "network"
            )
        few, W = few[moved], W[moved][:, moved]
        if normalises:
            W = _normalized(W, W.diagonal(), W.diagonal())
        root = None if probe.relative else inverse_root(W)
        return cls(probe, net, len(few), seed, normalises, few, root, int((~moved).sum()))

    def __call__(self, x: Tensor) -> Array:
        """[b, features], in float64 for K-means."""
        parts = [self._of(part) for part in x.split(AT_ONCE)]
        return np.asarray(torch.cat(parts).double().cpu().numpy())

    def error(self, x: Tensor, *, seed: int) -> float:
        """‖G − Φ Φᵀ‖ / ‖G‖ on some of the points x, both centred, since K-means sees differences alone; G is the full
        similarity among them, or ⟨row, row′⟩ of relative ones.
        """
        some = x[drawn(len(x), EXAMINED, seed).to(x.device)]
        S = self.probe.frozen(self.net, some).double()
        moved = S.isfinite().all(1)
        S, features = S[moved][:, moved], torch.from_numpy(self(some[moved])).to(S.device)
        S = (S + S.T) / 2
        if self.normalises:
            S = _normalized(S, S.diagonal(), S.diagonal())
        full = _centred(S @ S.T / len(S) if self.probe.relative else S)
        return float((full - _centred(features @ features.T)).norm() / full.norm())

    def _of(self, x: Tensor) -> Tensor:
        memory = min(MEMORY, budget_of(None, x.device))
        if self.landmarks is None:
            phi = gradient_sketch(
                Problem.of(self.net, self.probe.loss), x, dimension=self.count, seed=self.seed, memory=memory
            )
            size: Tensor = torch.linalg.vector_norm(phi, dim=1, keepdim=True)
            return phi / size if self.normalises else phi
        if self.probe.relative:
            S, _ = self.probe.between(self.net, x, self.landmarks, memory=memory)
            return S / math.sqrt(self.count)
        K = self.probe.towards(self.net, self.landmarks, x, memory=memory).T
        if self.normalises:
            K = _normalized(K, *self._diagonals(x, memory))
        assert self.root is not None
        features: Tensor = K @ self.root
        return features

    def _diagonals(self, x: Tensor, memory: int) -> tuple[Tensor, Tensor]:
        assert self.landmarks is not None
        one = self.landmarks[:1]
        return (
            self.probe.own(self.net, x, one, memory=memory),
            self.probe.own(self.net, self.landmarks, one, memory=memory),
        )


def clustered(features: Array, n_clusters: int, n_init: int, random: Any) -> KMeans:
    """K-means in minibatches, the best of `n_init` starts, and then on all points until none moves; all of it linear in
    their number.
    """
    rough = MiniBatchKMeans(n_clusters, n_init=n_init, batch_size=BATCH, random_state=random).fit(features)
    return KMeans(n_clusters, init=rough.cluster_centers_, n_init=1).fit(features)


def _normalized(K: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    tiny = torch.finfo(K.dtype).tiny
    return K / rows.clamp_min(tiny).sqrt()[:, None] / columns.clamp_min(tiny).sqrt()


def _centred(K: Tensor) -> Tensor:
    mean = K.mean(0)
    return K - mean - mean[:, None] + mean.mean()
