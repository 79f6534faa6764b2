"""Two uncorrelated quadratic features that share a/b and a start (Dan et al. Theorem 5.3, Lemma C.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.theory.diagonal_quadratic import DiagonalQuadratic
from local_elasticity.theory.flow import Array, Source, as_times, as_vectors, kept, ratio, split


@dataclass(frozen=True, eq=False)
class SymmetricPair:
    """`DiagonalQuadratic` in two dimensions with b₁/a₁ = b₂/a₂ = α² and 1/w₁(0)² = 1/w₂(0)² = α² + β² (eq. 16):

        S_rel = |β₁′β₁ + β₂′β₂| / |β₁² + β₂²| · |α² + β²(k₁E₂ + (1−k₁)E₁)| / |α² + β²(k₂E₂ + (1−k₂)E₁)|   (eq. 38)
        E_i = e^{−4θa_i t},   k₁ = β₁′β₁/(β₁′β₁ + β₂′β₂),   k₂ = β₁²/(β₁² + β₂²)

    The paper prints β₂(x′)² for β₂(x)² in the first denominator and in k₂ (`reading="as_printed"`), and does not say
    that the features must be uncorrelated.

    >>> pair = SymmetricPair(a=(1.0, 4.0), alpha=1.0, beta=2.0, rate=0.1)
    >>> pair.relative([0.0, 100.0], source=[1.0, 1.0], target=[2.0, 1.0])
    array([1.5, 1.5])
    >>> float(pair.late_bound(100.0, [1.0, 1.0], [2.0, 1.0]))
    0.75
    """

    a: ArrayLike
    alpha: float
    beta: float
    rate: float
    reading: Literal["as_defined", "as_printed"] = "as_defined"

    def __post_init__(self) -> None:
        a = np.asarray(self.a, dtype=np.float64)
        if a.shape != (2,) or (a <= 0).any():
            raise ValueError("a: expected two positive numbers (Theorem 5.3)")
        if self.alpha == 0 or self.beta == 0:
            raise ValueError("alpha, beta: expected both to differ from 0 (Theorem 5.3)")
        if self.reading not in ("as_defined", "as_printed"):
            raise ValueError(f"reading: expected as_defined or as_printed, got {self.reading!r}")
        _ = self.diagonal

    @cached_property
    def diagonal(self) -> DiagonalQuadratic:
        """The same flow as a special case of Theorem 5.2."""
        a = np.asarray(self.a, dtype=np.float64)
        w0 = np.full(2, (self.alpha**2 + self.beta**2) ** -0.5)
        return DiagonalQuadratic(a, self.alpha**2 * a, w0, self.rate)

    @property
    def start(self) -> Array:
        return self.diagonal.start

    def velocity(self, w: Array) -> Array:
        """As in `DiagonalQuadratic`."""
        return self.diagonal.velocity(w)

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, 2]."""
        return self.diagonal.w(t)

    def loss(self, t: ArrayLike) -> Array:
        """As in `DiagonalQuadratic`."""
        return self.diagonal.loss(t)

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t), [t, n, m], by eq. 38; a finite step as in `DiagonalQuadratic`."""
        if step_size:
            return self.diagonal.relative(t, source, target, step_size=step_size)
        times, (x, _), v = as_times(t), split(source, 2), as_vectors(target, 2, "target")
        products, squares, shape = self._terms(x, v)
        first, second = self._exponentials(times)
        above = self._mixed(products, first, second)
        below = self._mixed(squares, first, second)
        why = "its features β(x) are zero"
        return kept(ratio(np.abs(above), np.abs(below), scale=0.0, why=why).reshape(-1, *shape), times, x, v)

    def late_bound(self, t: ArrayLike, source: Source, target: ArrayLike) -> Array:
        """Eq. 39 with t₂* where half of α² is left: S_rel is at least this, which rises with t, from `late_from` on."""
        times, (x, _), v = as_times(t), split(source, 2), as_vectors(target, 2, "target")
        products, squares, shape = self._terms(x, v)
        share, own, slow, fast = self._lemma(products, squares)
        left = self.alpha**2 - share * np.exp(-slow * self._half_time(share, slow))
        moments = np.atleast_1d(times)[:, None, None]
        spread = own * np.exp(-fast * moments) + self.beta**2 * np.exp(-slow * moments)
        bound = np.abs(products.sum(-1)) / squares.sum(-1) * left / (self.alpha**2 + spread)
        return kept(bound.reshape(-1, *shape), times, x, v)

    def late_from(self, source: Source, target: ArrayLike) -> Array:
        """t₂* of `late_bound`, [n, m]; t₁* is 0, as the denominator of eq. 38 never vanishes."""
        (x, _), v = split(source, 2), as_vectors(target, 2, "target")
        share, _, slow, _ = self._lemma(*self._terms(x, v)[:2])
        return kept(self._half_time(share, slow), np.zeros(()), x, v)

    def _terms(self, x: Array, v: Array) -> tuple[Array, Array, tuple[int, int]]:
        """β_i(x′)β_i(x) and β_i(x)² (the second one of x′ as printed), [n, m, 2]."""
        inputs, others = np.atleast_2d(x)[:, None], np.atleast_2d(v)[None]
        squares = np.broadcast_to(inputs**2, np.broadcast(inputs, others).shape).copy()
        if self.reading == "as_printed":
            squares[..., 1] = np.broadcast_to(others[..., 1] ** 2, squares.shape[:2])
        return inputs * others, squares, squares.shape[:2]

    def _exponentials(self, times: Array) -> tuple[Array, Array]:
        a = self.diagonal.moments[0]
        first, second = np.exp(-4 * self.rate * np.atleast_1d(times)[:, None] * a).T
        return first[:, None, None], second[:, None, None]

    def _mixed(self, terms: Array, first: Array, second: Array) -> Array:
        """(s₁ + s₂)(α² + β²(kE₂ + (1−k)E₁)) with k = s₁/(s₁ + s₂), which is also right where s₁ + s₂ = 0."""
        return self.alpha**2 * terms.sum(-1) + self.beta**2 * (terms[..., 0] * second + terms[..., 1] * first)

    def _lemma(self, products: Array, squares: Array) -> tuple[Array, Array, Array, Array]:
        """b₁, b₂, q² and p² of Lemma C.1: of k₁ and 1 − k₁, b₁ is made of one that is not negative."""
        if (products.sum(-1) == 0).any():
            raise ValueError("target: its features are orthogonal to the source's, which Theorem 5.3 excludes")
        k1, k2 = products[..., 0] / products.sum(-1), squares[..., 0] / squares.sum(-1)
        swapped, rates = k1 < 0, 4 * self.rate * self.diagonal.moments[0]
        share = self.beta**2 * np.where(swapped, 1 - k1, k1)
        own = self.beta**2 * np.where(swapped, 1 - k2, k2)
        return share, own, np.where(swapped, rates[1], rates[0]), np.where(swapped, rates[0], rates[1])

    def _half_time(self, share: Array, slow: Array) -> Array:
        return np.log(np.maximum(2 * share / self.alpha**2, 1.0)) / slow
