"""Diagonal quadratic predictors over uncorrelated features (Dan et al. Theorem 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.theory.flow import Array, Source, as_step, as_times, as_vectors, kept, positive, ratio, split


@dataclass(frozen=True, eq=False)
class DiagonalQuadratic:
    """f(x) = α(x) + Σ_r β_r(x) w_r² with a_r = E[(y − α)β_r] and E[β_r β_s] = b_r 1{r = s}, by the flow of eq. 12:

        dw_r/dt = 2θ w_r (a_r − b_r w_r²)
        w_r²(t) = w_r²(0) / (e^{−4θa_r t} + b_r w_r²(0) (1 − e^{−4θa_r t})/a_r)             (eq. 36)
        lim_{η→0} S_rel = |Σ_r β_r(x′)β_r(x) w_r²(t)| / |Σ_r β_r(x)² w_r²(t)|               (eq. 13)

    a_r may have any sign, and w_r(0) any size: the printed a > 0 and w(0)² < a/b are not needed. A finite step has
    β(x) + cβ(x)² with c = η(y − f) in place of one β(x).

    Args:
        a, b, w0: [r]; b > 0, and no w0 is 0.
        rate: θ.

    Sources are features β(x), with labels as realizable ones, y − α = Σ β_r a_r/b_r; or (β(x), y − α).

    >>> flow = DiagonalQuadratic(a=[1.0, 4.0, 9.0], b=[1.0, 1.0, 1.0], w0=[0.5**0.5, 2**0.5, 2.0], rate=0.001)
    >>> flow.relative([0.0, 500.0], source=[1.0, 1.0, 1.0], target=[1.0, 0.0, 0.0]).round(4)
    array([0.0769, 0.0635])
    """

    a: ArrayLike
    b: ArrayLike
    w0: ArrayLike
    rate: float

    def __post_init__(self) -> None:
        positive(self.rate, "rate")
        if not self.moments[0].shape == self.moments[1].shape == self.start.shape or self.start.ndim != 1:
            shapes = ", ".join(str(v.shape) for v in (*self.moments, self.start))
            raise ValueError(f"a, b, w0: expected three vectors of one length, got {shapes}")
        if (self.moments[1] <= 0).any():
            raise ValueError("b: second moments E[β_r²] are positive; leave out a feature that is always zero")
        if (self.start == 0).any():
            still = ", ".join(map(str, np.flatnonzero(self.start == 0)))
            raise ValueError(
                f"w0: coordinate {still} starts at 0, a fixed point of eq. 12, and never moves; start it elsewhere"
            )

    @cached_property
    def moments(self) -> tuple[Array, Array]:
        """a and b."""
        return np.asarray(self.a, dtype=np.float64), np.asarray(self.b, dtype=np.float64)

    @cached_property
    def start(self) -> Array:
        return np.asarray(self.w0, dtype=np.float64)

    def velocity(self, w: Array) -> Array:
        """2θ w (a − b w²) (eq. 35 with d = 2)."""
        a, b = self.moments
        return 2 * self.rate * w * (a - b * w**2)

    def squares(self, t: ArrayLike) -> Array:
        """w²(t), [t, r] (eq. 36), with the growing exponential of a negative a divided out."""
        (a, b), first = self.moments, self.start**2
        power = 4 * self.rate * as_times(t)[..., None] * np.abs(a)
        decay = np.exp(-power)
        size = np.where(a == 0, 1.0, np.abs(a))
        grown = np.where(a == 0, 4 * self.rate * as_times(t)[..., None], -np.expm1(-power) / size)
        return first * np.where(a < 0, decay, 1.0) / (np.where(a < 0, 1.0, decay) + b * first * grown)

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, r]; signs never change."""
        return np.sign(self.start) * np.sqrt(self.squares(t))

    def loss(self, t: ArrayLike) -> Array:
        """½ Σ b (w² − a/b)², the risk above that of the best linear predictor over these features, [t]."""
        a, b = self.moments
        return 0.5 * (b * (self.squares(t) - a / b) ** 2).sum(-1)

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t), [t, n, m], for features β(x) [n, r] and β(x′) [m, r] (eq. 13, or a finite step)."""
        return self._relative(self.squares(t), as_times(t), source, target, as_step(step_size))

    def relative_at(self, w: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """The same at any weights, one vector or a stack of them, such as the runs of an SGD: [runs, n, m]."""
        squares = as_vectors(w, len(self.start), "w") ** 2
        return self._relative(squares, squares[..., 0], source, target, as_step(step_size))

    def signed(self, t: ArrayLike, source: Source, target: ArrayLike) -> Array:
        """Eq. 14 as it is printed, without the absolute values: it is negative where the target moves the other way."""
        times, v = as_times(t), as_vectors(target, len(self.start), "target")
        beta, wanted = split(source, len(self.start))
        own, _, moved = self._changes(self.squares(np.atleast_1d(times)), beta, wanted, v, 0.0)
        return kept(moved / own[..., None], times, beta, v)

    def _relative(self, squares: Array, like: Array, source: Source, target: ArrayLike, step: float) -> Array:
        v = as_vectors(target, len(self.start), "target")
        beta, wanted = split(source, len(self.start))
        own, terms, moved = self._changes(np.atleast_2d(squares), beta, wanted, v, step)
        why = "its features β(x) are zero"
        return kept(ratio(np.abs(moved), np.abs(own)[..., None], scale=terms[..., None], why=why), like, beta, v)

    def _changes(
        self, squares: Array, beta: Array, wanted: Array | None, v: Array, step: float
    ) -> tuple[Array, Array, Array]:
        """Σβ(x)k, Σ|β(x)k| and Σβ(x′)k with k = w²(β(x) + cβ(x)²): [t, n], [t, n], [t, n, m]."""
        features = np.atleast_2d(beta)
        if wanted is None:
            wanted = features @ (self.moments[0] / self.moments[1])
        push = step * (np.atleast_1d(wanted) - squares @ features.T)
        moved = squares[:, None] * (features + push[..., None] * features**2)
        return (moved * features).sum(-1), np.abs(moved * features).sum(-1), moved @ np.atleast_2d(v).T
