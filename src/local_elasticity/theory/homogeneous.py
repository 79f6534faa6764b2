"""Predictors homogeneous of degree d in the weights and linear in features (Dan et al. §5, Definition 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.theory.flow import (
    Array,
    Source,
    as_step,
    as_times,
    as_vectors,
    integrate,
    kept,
    positive,
    ratio,
    split,
)


@dataclass(frozen=True, eq=False)
class HomogeneousFeatures:
    """f(x) = α(x) + Σ_r ⟨β_r(x), w_r^d⟩, trained on ½(y − f)² by gradient flow (Definitions 6 and 7, eq. 12).

        lim_{η→0} S_rel = |Σ_r ⟨β_r(x′) ⊙ β_r(x), w_r^{2(d−1)}⟩| / |Σ_r ⟨β_r(x)², w_r^{2(d−1)}⟩|     (eq. 31)

    A finite step is the polynomial in η of eqs 26 and 28, from which η(y − f)d is taken out, above and below. w(t) has
    no closed form here; `weights` integrates. Powers are elementwise.

    Args:
        degree: d ≥ 1.
        alpha, beta: functions of inputs [n, d_in], to [n] and [n, r, q].
        inputs, labels: what it is trained on, [N, d_in] and [N].
        w0, rate: w(0), [r, q], and θ.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> zero, diagonal = lambda x: np.zeros(len(x)), lambda x: x[:, None, :]
    >>> flow = HomogeneousFeatures(2, zero, diagonal, x, x @ [1.0, 4.0], w0=[[0.5, 0.5]], rate=0.1)
    >>> flow.relative([0.0, 50.0], source=[1.0, 1.0], target=[1.0, 0.0]).round(3)
    array([0.5, 0.2])
    """

    degree: int
    alpha: Callable[[Array], Array]
    beta: Callable[[Array], Array]
    inputs: ArrayLike
    labels: ArrayLike
    w0: ArrayLike
    rate: float

    def __post_init__(self) -> None:
        positive(self.rate, "rate")
        if int(self.degree) != self.degree or self.degree < 1:
            raise ValueError(f"degree: expected a whole number from 1 on, got {self.degree}")
        features = np.asarray(self.beta(self._inputs))
        if features.shape != (len(self._inputs), *self.start.shape) or self.start.ndim != 2:
            raise ValueError(
                f"beta: expected [N, r, q] with w0 [r, q]; it makes {features.shape} and w0 is {self.start.shape}"
            )
        if np.shape(self.labels) != (len(self._inputs),):
            raise ValueError(f"labels: expected [{len(self._inputs)}], got {np.shape(self.labels)}")

    @cached_property
    def _inputs(self) -> Array:
        inputs = np.asarray(self.inputs, dtype=np.float64)
        if inputs.ndim != 2:
            raise ValueError(f"inputs: expected [N, d], got {inputs.shape}")
        return inputs

    @cached_property
    def start(self) -> Array:
        return np.asarray(self.w0, dtype=np.float64)

    @cached_property
    def _trained_on(self) -> tuple[Array, Array]:
        """β of the inputs, [N, r, q], and y − α, [N]."""
        return self.beta(self._inputs), np.asarray(self.labels, dtype=np.float64) - self.alpha(self._inputs)

    def predict(self, w: Array, inputs: ArrayLike) -> Array:
        """f, [n], at weights [r, q]; [t, n] at weights [t, r, q]."""
        x = as_vectors(inputs, self._inputs.shape[1], "inputs")
        return self.alpha(x) + np.einsum("nrq,...rq->...n", self.beta(x), w**self.degree)

    def velocity(self, w: Array) -> Array:
        """θ d E[(y − f) β(x) ⊙ w^{d−1}] (eq. 12)."""
        beta, wanted = self._trained_on
        error = wanted - np.einsum("nrq,rq->n", beta, w**self.degree)
        pull: Array = np.einsum("n,nrq->rq", error, beta) / len(beta) * w ** (self.degree - 1)
        return self.rate * self.degree * pull

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, r, q], by numbers."""
        return integrate(self, self.start, t)

    def loss(self, t: ArrayLike) -> Array:
        """E ½(y − f)², [t]."""
        beta, wanted = self._trained_on
        outputs = np.einsum("nrq,...rq->...n", beta, self.w(t) ** self.degree)
        return 0.5 * ((wanted - outputs) ** 2).mean(-1)

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t), [t, n, m]: eq. 31, or eqs 26 and 28 for a finite step, which needs source = (x, y)."""
        times, step = as_times(t), as_step(step_size)
        (x, y), v = split(source, self._inputs.shape[1]), as_vectors(target, self._inputs.shape[1], "target")
        w, inputs = self.w(np.atleast_1d(times)), np.atleast_2d(x)
        if step and y is None:
            raise ValueError("source: a finite step depends on the label; pass source=(inputs, labels)")
        push = step * (np.atleast_1d(y) - self.predict(w, inputs)) if step and y is not None else None
        moved = self._moved(w, self.beta(inputs), push)
        return kept(self._ratio(moved, inputs, np.atleast_2d(v)), times, x, v)

    def bound(self, w: Array, source: ArrayLike, target: ArrayLike) -> Array:
        """Theorem 5.1 at weights [r, q]: S_rel ≤ P(x, x′) Σ_r ‖w_r^{2(d−1)}‖ / |Σ_r ⟨β_r(x)², w_r^{2(d−1)}⟩|.

        For d > 1 it moves with w: it is not independent of time.
        """
        power = w ** (2 * (self.degree - 1))
        own = np.abs(np.einsum("nrq,rq->n", self.beta(np.atleast_2d(source)) ** 2, power))
        return self.proximity(source, target) * np.linalg.norm(power, axis=1).sum() / own[:, None]

    def proximity(self, source: ArrayLike, target: ArrayLike) -> Array:
        """P(x, x′) = max_r ‖β_r(x′) ⊙ β_r(x)‖, symmetric and independent of w, [n, m]."""
        at_source, at_target = self.beta(np.atleast_2d(source)), self.beta(np.atleast_2d(target))
        return np.linalg.norm(at_source[:, None] * at_target[None], axis=-1).max(-1)

    def _moved(self, w: Array, beta: Array, push: Array | None) -> Array:
        """(w⁺)^d − w^d without its factor η(y − f)d: Σ_k C(d,k) (ηd(y−f))^{k−1} w^{d−k} (β w^{d−1})^k, [t, n, r, q]."""
        d, w = self.degree, w[:, None]
        step = beta * w ** (d - 1)
        moved = d * w ** (d - 1) * step
        if push is None:
            return moved
        for k in range(2, d + 1):
            moved = moved + comb(d, k) * (d * push[..., None, None]) ** (k - 1) * w ** (d - k) * step**k
        return moved

    def _ratio(self, moved: Array, inputs: Array, others: Array) -> Array:
        at_source, at_target = self.beta(inputs), self.beta(others)
        own = np.einsum("tnrq,nrq->tn", moved, at_source)[..., None]
        terms = np.einsum("tnrq,nrq->tn", np.abs(moved), np.abs(at_source))[..., None]
        change = np.einsum("tnrq,mrq->tnm", moved, at_target)
        why = "its features β(x), or the weights they meet, are zero"
        return ratio(np.abs(change), np.abs(own), scale=terms, why=why)
