"""LocalElasticityClustering: fine-grained clusters inside a known superclass (He & Su, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from local_elasticity.checks import check_choice, check_count, check_device, check_positive
from local_elasticity.clustering.approximate import COMPONENTS
from local_elasticity.clustering.fitted import ByFeatures, BySimilarity, Clusters
from local_elasticity.clustering.kernel_kmeans import KernelKMeans
from local_elasticity.clustering.networks import Factory, build_network, check_outputs
from local_elasticity.clustering.points import AsTheyAre, Scaling, auxiliary_points
from local_elasticity.clustering.probe import SimilarityProbe
from local_elasticity.clustering.warm_up import Training, WarmUpHistory, learn, stable_rate
from local_elasticity.engine.guard import untouched

Array = np.ndarray


class LocalElasticityClustering(ClusterMixin, BaseEstimator):
    """Cluster points by how far a network's step on one of them moves its predictions of the others.

    A network learns to tell the primary points X (all of one superclass) from auxiliary ones. Then it is asked, for
    every primary point x: if it took one step on x, how far would its prediction at x′ move? Points of the same kind
    move together. Relative similarities are clustered by K-means on their rows, kernelized ones by kernel K-means.

    Inputs are [n, d], whose columns are brought to mean 0 and standard deviation 1, or images [n, …], whose pixels are
    brought to [−1, 1]; so are the auxiliary ones, in the same way. Whole numbers [n, d], such as token ids, go to a
    network of your own as they are; pass `X.astype(float)` where they are amounts.

    Args:
        n_clusters: how many clusters.
        similarity: `"relative"` (eq. 2.2), `"kernel"` (eq. 2.3) or `"normalized_kernel"` (A.4).
        loss: `"l2"` or `"bce"`, of the network and of the probing step.
        network: a name (`"fnn"`, `"linear"`, `"resnet"`, each with a width as in `"fnn-40960"`; `"cnn"` for images),
            a function of one input's shape that makes an `nn.Module`, or a module, of which a copy is trained.
        protocol: `"frozen"` (all steps from the same weights, as released) or `"sequential"` (Algorithm 1 to the
            letter: one pass of SGD over primary and auxiliary points, each row recorded as it is met).
        passes: of the sequential protocol, averaged.
        init: `"trained"` (a warm-up comes first) or `"random"` (the network as it is made).
        auxiliary: `"shuffle"` (each feature permuted across the samples), `"noise"` (normal, with each feature's mean
            and standard deviation), or an array of other points. What you know to be another class is best.
        approximation: `"landmarks"` (Nyström) or `"sketch"` (random projections of gradients, kernels in the limit of
            small steps only) for many points: K-means on a few features of each, at a cost that grows
            with n and not with n².
        n_components: landmarks, or numbers in a sketch; 256 or 2048 unless given.
        n_init: starts of K-means or kernel K-means.
        epochs, batch_size, learning_rate: of the warm-up. Without a rate the largest stable one is taken.
        step_size: of the probe. By default the limit of ever smaller steps at frozen weights (the released code takes
            1e-6), and in sequence the warm-up's rate or, if that is less, the largest stable one for single points.
        reading: `"as_defined"`, or `"as_released"`: labels 1 and 0 instead of ±1 with the squared loss, and one random
            start of kernel K-means with seed 0 instead of the best of `n_init`.
        device: where the network is. random_state: a seed, a RandomState or None. Equal seeds give equal labels.
        verbose: show progress, by a bar on a terminal and by lines on stderr elsewhere; what is quick shows none.

    Attributes:
        labels_: [n], whole numbers from 0.
        similarity_: the symmetrised matrix that was clustered, [n, n]; NaN among points that did not move. Not there
            with an approximation, which has `features_`, [n, components], and `approximation_error_`: how far their
            inner products are from the full similarity among some of the points, relative and centred.
        inertia_: the objective of K-means or kernel K-means. With an approximation it is that of the full similarity,
            as far as the features tell, so that the two can be compared.
        history_: `learning_rate` and the `loss` of each epoch of the warm-up.
        network_: the network after it.
        step_size_: of the probe; None for the limit of small ones.
        unresolved_: how many points did not move under a step on themselves; they are put with the cluster to which
            the others' steps say that they belong.
        n_features_in_: length of a sample's first axis.

    >>> from sklearn.datasets import make_blobs
    >>> X, kinds = make_blobs(60, centers=2, n_features=3, random_state=0)
    >>> model = LocalElasticityClustering(n_clusters=2, random_state=0).fit(X)
    >>> from local_elasticity.clustering import best_match_accuracy
    >>> best_match_accuracy(model.labels_, kinds) > 0.9, model.similarity_.shape
    (True, (60, 60))
    """

    def __init__(
        self,
        n_clusters: int = 2,
        *,
        similarity: Literal["relative", "kernel", "normalized_kernel"] = "kernel",
        loss: Literal["l2", "bce"] = "l2",
        network: str | Factory | nn.Module = "fnn",
        protocol: Literal["frozen", "sequential"] = "frozen",
        passes: int = 1,
        init: Literal["trained", "random"] = "trained",
        auxiliary: str | ArrayLike = "shuffle",
        approximation: Literal["landmarks", "sketch"] | None = None,
        n_components: int | None = None,
        n_init: int = 10,
        epochs: int = 50,
        batch_size: int = 50,
        learning_rate: float | None = None,
        step_size: float | None = None,
        reading: Literal["as_defined", "as_released"] = "as_defined",
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.similarity = similarity
        self.loss = loss
        self.network = network
        self.protocol = protocol
        self.passes = passes
        self.init = init
        self.auxiliary = auxiliary
        self.approximation = approximation
        self.n_components = n_components
        self.n_init = n_init
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.step_size = step_size
        self.reading = reading
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, *, auxiliary: str | ArrayLike | None = None) -> Self:
        """Cluster X; `auxiliary` points given here come before those of the constructor. Labels y are not looked at.

        Args:
            X: the primary points, [n, d] or [n, ...].
            y: ignored.
            auxiliary: as in the constructor.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if a parameter or X is invalid, or too few points move under a step on themselves.
        """
        self._check_parameters()
        points: Array = validate_data(self, X, dtype="numeric", allow_nd=True, ensure_min_samples=2)
        if len(points) < self.n_clusters:
            raise ValueError(f"n_samples={len(points)} should be >= n_clusters={self.n_clusters}.")
        whole = points.ndim == 2 and points.dtype.kind in "iu" and not isinstance(self.network, str)
        points = points if whole else points.astype(np.float64)
        random = check_random_state(self.random_state)
        A = auxiliary_points(self.auxiliary if auxiliary is None else auxiliary, points, random)
        seeds = random.randint(2**31 - 1, size=2)
        self._fit(points, A, seeds, random, whole=whole)
        return self

    @untouched
    def _fit(self, points: Array, A: Array, seeds: Array, random: np.random.RandomState, *, whole: bool) -> None:
        """Warm up, probe and cluster; whatever interrupts it, torch is left as it was."""
        self._shape, self._scaling = points.shape[1:], AsTheyAre() if whole else Scaling.of(points)
        training = self._training(self._scaling(points), self._scaling(A), seed=int(seeds[0]))
        self.network_ = build_network(self.network, points.shape[1:], loss=self.loss, seed=int(seeds[1])).to(
            self.device
        )
        check_outputs(self.network_, training.x[:256], self.loss)
        self.history_ = self._warm_up(training)
        self.step_size_ = self._probing_step(training)
        self._clusters = self._cluster(training, random)
        for name in ("similarity_", "features_", "approximation_error_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(self._clusters.attributes())

    def predict(self, X: ArrayLike) -> Array:
        """The clusters of new points, from their similarity with the fitted ones at the weights after the warm-up.

        Args:
            X: new points, of the shape of the fitted ones.

        Returns:
            The labels, [m].

        Raises:
            ValueError: if the shape of the points differs.
        """
        x = self._new_points(X)
        return self._clusters.predict(x)

    def score(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """How clearly points lie in their own cluster rather than in the next one: the mean of (b − a)/b, where a and b
        are the distances to the nearest and second nearest centre among similarities (a simplified silhouette, 0 to 1).
        It depends on no unit, so that settings can be compared; a single cluster has 0. It finds the number of well
        separated groups, and takes too many where they overlap (docs/clustering.md). Labels y are not looked at.

        Args:
            X: points, of the shape of the fitted ones.
            y: ignored.

        Returns:
            A number between 0 and 1; larger is clearer.

        Raises:
            ValueError: if the shape of the points differs.
        """
        x = self._new_points(X)
        distances = np.sort(self._clusters.distances(x), axis=1)
        if distances.shape[1] == 1:
            return 0.0
        a, b = distances[:, :2].T
        return float(np.mean(np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)))

    @property
    def _auxiliary_label(self) -> float:
        """Algorithm 1 has −1, the released code 0, and cross entropy knows no −1."""
        return -1.0 if self.loss == "l2" and self.reading == "as_defined" else 0.0

    @property
    def _loss_name(self) -> str:
        return "bce" if self.loss == "bce" else "mse" if self.reading == "as_released" else "half_mse"

    def _training(self, primary: Array, auxiliary: Array, *, seed: int) -> Training:
        x = torch.from_numpy(np.concatenate([primary, auxiliary])).to(self.device)
        y = torch.full((len(x),), self._auxiliary_label, device=x.device)
        y[: len(primary)] = 1
        return Training(x, y, self._loss_name, self.epochs, self.batch_size, seed)

    def _warm_up(self, training: Training) -> WarmUpHistory:
        if self.init == "random":
            return WarmUpHistory(self.learning_rate or math.nan)
        return learn(self.network_, training, self.learning_rate, progress=bool(self.verbose))

    def _probing_step(self, training: Training) -> float | None:
        if self.step_size is not None or self.protocol == "frozen":
            return self.step_size
        single = stable_rate(self.network_, training, batch_size=1)
        return single if math.isnan(self.history_.learning_rate) else min(single, self.history_.learning_rate)

    def _cluster(self, training: Training, random: np.random.RandomState) -> Clusters:
        probe = SimilarityProbe(self.similarity == "relative", self._loss_name, self.step_size_, bool(self.verbose))
        normalises = self.similarity == "normalized_kernel"
        if self.approximation is None:
            passes = self.passes if self.protocol == "sequential" else None
            clusterer = clusterer_of(self, self.n_clusters, random)
            return BySimilarity.of(probe, self.network_, training, clusterer, passes=passes, normalises=normalises)
        return ByFeatures.of(
            self.approximation,
            probe,
            self.network_,
            training.primary,
            KMeans(self.n_clusters, n_init=self.n_init, random_state=random),
            count=self.n_components,
            normalises=normalises,
            seed=int(random.randint(2**31 - 1)),
        )

    def _new_points(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype="numeric", allow_nd=True, reset=False)
        if X.shape[1:] != self._shape:
            raise ValueError(f"X: expected samples of shape {self._shape} (as in fit), got shape {X.shape[1:]}")
        return torch.from_numpy(self._scaling(X)).to(next(self.network_.parameters()).device)

    def _check_parameters(self) -> None:
        for name in ("n_clusters", "n_init", "passes", "batch_size", "epochs"):
            check_count(name, getattr(self, name))
        for name in ("learning_rate", "step_size"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_device(self.device)
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.approximation is not None:
            self._check_approximation()

    def _check_approximation(self) -> None:
        check_choice("approximation", self.approximation, tuple(COMPONENTS))
        if self.n_components is not None:
            check_count("n_components", self.n_components, least=2 if self.approximation == "sketch" else 1)
        if self.protocol == "sequential":
            raise ValueError("approximation: expected protocol='frozen', got 'sequential'; its walk has no kernel")
        if self.approximation == "sketch" and (self.similarity == "relative" or self.step_size is not None):
            raise ValueError(
                "approximation: a sketch is of the kernel in the limit of small steps; use approximation='landmarks' "
                "for relative similarities or a step_size"
            )


def clusterer_of(
    model: LocalElasticityClustering, n_clusters: int, random: np.random.RandomState
) -> KMeans | KernelKMeans:
    """What clusters the similarities of a model."""
    if model.similarity == "relative":
        return KMeans(n_clusters, n_init=model.n_init, random_state=random)
    if model.reading == "as_released":
        return KernelKMeans(n_clusters, init="random", algorithm="lloyd", n_init=1, random_state=0)
    return KernelKMeans(n_clusters, n_init=model.n_init, random_state=random)


CHOICES: dict[str, Sequence[str]] = {
    "similarity": ("relative", "kernel", "normalized_kernel"),
    "loss": ("l2", "bce"),
    "protocol": ("frozen", "sequential"),
    "init": ("trained", "random"),
    "reading": ("as_defined", "as_released"),
}
