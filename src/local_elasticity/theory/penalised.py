"""Penalised regression over fixed features with class labels (Dan et al. §3)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.theory.flow import Array, Source, as_step, as_times, as_vectors, kept, positive, ratio, split

Reading = Literal["as_defined", "as_printed", "as_released"]


@dataclass(frozen=True, eq=False)
class PenalisedFeatures:
    """The flow dW/dt = −rate ∂L/∂W of a last layer W ∈ R^{K×p} over features h, with class labels (eq. 3):

        L(W) = 1/(2N) Σ ‖e_k − W h‖² + λ/(2K) ‖W‖²,   M = ρI + (1/N) Σ h hᵀ,   u_q = (1/N) Σ_{class q} h
        w_q(t) = e^{−rate M t} (w_q(0) − M⁻¹u_q) + M⁻¹u_q                                  (Theorem 3.1)
        S_rel = ‖D(h′)‖/‖D(h)‖,   D(v) = (e_k − W h)(h·v) − ρ W v                          (Theorem 3.2, eq. 4)

    D is eq. 4 before its squares are expanded, so that nothing cancels late in training. The step is linear in its
    size: S_rel of a finite step is that of the limit. One eigendecomposition of M serves all times.

    Args:
        features, labels: h, [N, p], and the classes 0 … K−1, [N].
        penalty, rate: λ ≥ 0 and θ², what multiplies the gradient (the figures have θ = 0.001).
        w0: W(0), [K, p]; zero by default.
        reading: "as_defined", ρ = λ/K, the gradient of eq. 3; "as_printed", ρ = Nλ/K throughout; "as_released", that
            ρ, a stray 1/N before W h in the numerator alone, and a loss that does not see the labels.

    >>> import numpy as np
    >>> flow = PenalisedFeatures(np.eye(2), [0, 1], penalty=1.0, rate=1.0)
    >>> flow.relative([0.0, 1.0], source=([1.0, 0.0], 0), target=[0.5, 1.0]).round(4)
    array([0.5   , 0.5833])
    """

    features: ArrayLike
    labels: ArrayLike
    penalty: float
    rate: float
    w0: ArrayLike | None = None
    reading: Reading = "as_defined"

    def __post_init__(self) -> None:
        positive(self.rate, "rate")
        if self.penalty < 0:
            raise ValueError(f"penalty: λ is not negative, but {self.penalty:g} is")
        if self.reading not in ("as_defined", "as_printed", "as_released"):
            raise ValueError(f"reading: expected as_defined, as_printed or as_released, got {self.reading!r}")
        if self._features.ndim != 2 or self._classes.shape != self._features.shape[:1]:
            raise ValueError(
                f"features: expected [N, p] with labels [N], got {self._features.shape} with {self._classes.shape}"
            )
        if self.start.shape != (self.classes, self.size):
            raise ValueError(f"w0: expected [{self.classes}, {self.size}], got {self.start.shape}")
        least, most = self.spectrum[0][[0, -1]]
        if least <= 1e-13 * most:
            raise ValueError(
                "penalty: M = ρI + (1/N)Σ h hᵀ is singular; Theorem 3.1 assumes λ > 0 (or features that span R^p)"
            )

    @cached_property
    def _features(self) -> Array:
        return np.asarray(self.features, dtype=np.float64)

    @cached_property
    def _classes(self) -> np.ndarray:
        classes = np.asarray(self.labels)
        if not np.issubdtype(classes.dtype, np.integer) or (classes < 0).any():
            raise ValueError("labels: expected classes 0, 1, …, whole numbers")
        return classes

    @property
    def size(self) -> int:
        return int(self._features.shape[1])

    @cached_property
    def classes(self) -> int:
        """K."""
        return int(self._classes.max()) + 1

    @cached_property
    def start(self) -> Array:
        given = np.zeros((self.classes, self.size)) if self.w0 is None else self.w0
        return np.asarray(given, dtype=np.float64)

    @property
    def ridge(self) -> float:
        """ρ."""
        share = self.penalty / self.classes
        return share if self.reading == "as_defined" else share * len(self._features)

    @cached_property
    def second_moment(self) -> Array:
        """(1/N) Σ h hᵀ, [p, p]."""
        return self._features.T @ self._features / len(self._features)

    @cached_property
    def class_sums(self) -> Array:
        """u_q, [K, p]."""
        return np.eye(self.classes)[self._classes].T @ self._features / len(self._features)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues of M, [p], and its eigenvectors as columns."""
        values, vectors = np.linalg.eigh(self.second_moment)
        return values + self.ridge, vectors

    @property
    def limit(self) -> Array:
        """W(∞) = M⁻¹u, [K, p]."""
        values, vectors = self.spectrum
        return self.class_sums @ vectors / values @ vectors.T

    def starting_at(self, w0: ArrayLike) -> PenalisedFeatures:
        """The same flow from another W(0); moments and eigendecomposition are kept."""
        _ = self.class_sums
        other = copy.copy(self)
        other.__dict__.pop("start", None)
        object.__setattr__(other, "w0", w0)
        other.__post_init__()
        return other

    def velocity(self, w: Array) -> Array:
        """rate · (u − W M) (Definition 4)."""
        return self.rate * (self.class_sums - w @ self.second_moment - self.ridge * w)

    def w(self, t: ArrayLike) -> Array:
        """W(t), [t, K, p] (Theorem 3.1)."""
        vectors = self.spectrum[1]
        offset = (self.start - self.limit) @ vectors
        return self._decay(as_times(t))[..., None, :] * offset @ vectors.T + self.limit

    def outputs(self, t: ArrayLike, inputs: ArrayLike) -> Array:
        """W(t) h for features h, [t, n, K], at the price of one matrix product."""
        times, vectors = as_times(t), np.atleast_2d(as_vectors(inputs, self.size, "inputs"))
        offset = (self.start - self.limit) @ self.spectrum[1]
        modes = ((vectors @ self.spectrum[1])[:, None, :] * offset).reshape(-1, self.size)
        moving = self._decay(np.atleast_1d(times)) @ modes.T
        return moving.reshape(-1, len(vectors), self.classes) + vectors @ self.limit.T

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t) (eq. 4), [t, n, m], for source = (h [n, p], class [n]) and target h′ [m, p]; any step_size."""
        as_step(step_size)
        times, (h, k), v = as_times(t), split(source, self.size), as_vectors(target, self.size, "target")
        if k is None or not np.isin(k, np.arange(self.classes)).all():
            raise ValueError(f"source: expected (features, classes), classes from 0 to {self.classes - 1}")
        one_hot = np.eye(self.classes)[np.atleast_1d(k).astype(int)]
        at_source, at_target = self.outputs(times, h), self.outputs(times, v)
        products = np.atleast_2d(h) @ np.atleast_2d(v).T
        share = 1 / len(self._features) if self.reading == "as_released" else 1.0
        moved = np.zeros((len(at_source), *products.shape))
        for q in range(self.classes):
            error = one_hot[:, q] - share * at_source[:, :, q]
            moved += (error[:, :, None] * products - self.ridge * at_target[:, None, :, q]) ** 2
        square = (np.atleast_2d(h) ** 2).sum(1)[:, None]
        own = np.linalg.norm((one_hot - at_source) * square - self.ridge * at_source, axis=2)
        terms = np.linalg.norm((one_hot + np.abs(at_source)) * square + self.ridge * np.abs(at_source), axis=2)
        why = "the gradient at that source vanishes (its features are zero, or it is fitted exactly)"
        return kept(ratio(np.sqrt(moved), own[..., None], scale=terms[..., None], why=why), times, h, v)

    def loss(self, t: ArrayLike) -> Array:
        """L(W(t)) (eq. 3), [t]; as released, every output is compared with every entry of e_k, whatever k."""
        w = self.w(t)
        if self.reading == "as_released":
            means = self._features.mean(0)
            fit = self.classes / 2 * (1 + self._quadratic(w)) - np.einsum("...qp,p->...", w, means)
        else:
            fit = 0.5 - np.einsum("...qp,qp->...", w, self.class_sums) + 0.5 * self._quadratic(w)
        return fit + self.penalty / (2 * self.classes) * (w**2).sum((-2, -1))

    def _quadratic(self, w: Array) -> Array:
        """(1/N) Σ ‖W h‖²."""
        return np.einsum("...qp,...qp->...", w @ self.second_moment, w)

    def _decay(self, times: Array) -> Array:
        return np.exp(-self.rate * times[..., None] * self.spectrum[0])
