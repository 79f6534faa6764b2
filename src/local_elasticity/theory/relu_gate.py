"""A single ReLU gate, realizable labels, and the flow of the modified SGD (Dan et al. §4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.theory.flow import Array, Source, as_step, as_times, as_vectors, kept, positive, ratio, split
from local_elasticity.theory.relu import relu_change, relu_slope


@dataclass(frozen=True, eq=False)
class ReluGate:
    """f(x) = max(0, w·x) with labels max(0, w*·x), and the flow of Definition 5:

        dw/dt = rate · E[1{w*·x > 0} (w*·x − w·x) x] = rate · M (w* − w),   M = E[1{w*·x > 0} x xᵀ]
        w(t) = w* + e^{−rate M t} (w(0) − w*)                                              (Theorem 4.1)

    A step at x moves w·x′ by α₂ = η rate 1{w*·x > 0} ⟨e^{−rate M t}(w* − w(0)), x⟩ ⟨x, x′⟩ (eqs 9, 19, 20), and S_rel
    follows from the signs of w·x′ before and after it.

    Args:
        second_moment: M, [d, d]; `ReluGate.of_inputs` estimates it from inputs.
        w_star, w0: the true weights and w(0), [d].
        rate: β.

    >>> import numpy as np
    >>> gate = ReluGate(np.eye(2) / 2, w_star=[1.0, 1.0], w0=[1.0, 0.0], rate=1.0)
    >>> gate.relative([0.0, 5.0], source=[1.0, 1.0], target=[[2.0, 1.0], [-3.0, 4.0]])
    array([[1.5, 0. ],
           [1.5, 0.5]])
    """

    second_moment: ArrayLike
    w_star: ArrayLike
    w0: ArrayLike
    rate: float

    def __post_init__(self) -> None:
        positive(self.rate, "rate")
        if self._moment.shape != (self.size, self.size) or self.start.shape != (self.size,):
            raise ValueError(
                f"second_moment: expected [{self.size}, {self.size}] with w0 [{self.size}], as w_star has "
                f"{self.size} numbers, not {self._moment.shape} with {self.start.shape}"
            )
        if not np.allclose(self._moment, self._moment.T):
            raise ValueError("second_moment: a second moment is symmetric")
        least, most = self.spectrum[0][[0, -1]]
        if least <= 1e-13 * most:
            raise ValueError(
                "second_moment: M = E[1{w*·x > 0} x xᵀ] is not positive definite, which Theorem 4.1 assumes; "
                "inputs on the side of w* must span the space"
            )

    @classmethod
    def of_inputs(cls, inputs: ArrayLike, w_star: ArrayLike, w0: ArrayLike, rate: float) -> ReluGate:
        """With M estimated from inputs, [N, d].

        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(10000, 3))
        >>> gate = ReluGate.of_inputs(x, w_star=np.ones(3), w0=np.zeros(3), rate=1.0)
        >>> bool(np.allclose(gate.second_moment, np.eye(3) / 2, atol=0.05))
        True
        """
        star = np.asarray(w_star, dtype=np.float64)
        x = as_vectors(inputs, len(star), "inputs")
        seen = x[x @ star > 0]
        return cls(seen.T @ seen / len(x), star, w0, rate)

    @cached_property
    def _moment(self) -> Array:
        return np.asarray(self.second_moment, dtype=np.float64)

    @cached_property
    def star(self) -> Array:
        """w*."""
        return np.asarray(self.w_star, dtype=np.float64)

    @cached_property
    def start(self) -> Array:
        return np.asarray(self.w0, dtype=np.float64)

    @property
    def size(self) -> int:
        return len(self.star)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues of M and its eigenvectors as columns."""
        values, vectors = np.linalg.eigh(self._moment)
        return values, vectors

    def velocity(self, w: Array) -> Array:
        """rate · M (w* − w) (eq. 5)."""
        return self.rate * self._moment @ (self.star - w)

    def missing(self, t: ArrayLike) -> Array:
        """w* − w(t) = e^{−rate M t}(w* − w(0)), [t, d], without subtracting."""
        values, vectors = self.spectrum
        decay = np.exp(-self.rate * as_times(t)[..., None] * values)
        return (decay * ((self.star - self.start) @ vectors)) @ vectors.T

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, d] (Theorem 4.1)."""
        return self.star - self.missing(t)

    def loss(self, t: ArrayLike) -> Array:
        """The risk behind eq. 8, ½ rate (w − w*)ᵀ M (w − w*), [t]."""
        gone = self.missing(t)
        return 0.5 * self.rate * np.einsum("...i,ij,...j->...", gone, self._moment, gone)

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t), [t, n, m], for inputs x [n, d] and x′ [m, d], from eqs 19 and 20; NaN where the gate is off."""
        times, (x, _), v = as_times(t), split(source, self.size), as_vectors(target, self.size, "target")
        step, inputs, others = as_step(step_size), np.atleast_2d(x), np.atleast_2d(v)
        w = np.atleast_2d(self.w(times))
        push = self._push(np.atleast_1d(times), inputs)
        if step:
            push, change = step * push, relu_change
        else:
            push, change = np.where(push == 0, 0.0, np.sign(push)), relu_slope
        moved = np.abs(change((w @ others.T)[:, None, :], push[:, :, None] * (inputs @ others.T)))
        own = np.abs(change(w @ inputs.T, push * (inputs**2).sum(1)))
        why = "the source is on the far side of w*, or the gate is off there, before and after the step"
        return kept(ratio(moved, own[..., None], scale=0.0, why=why), times, x, v)

    def change_bound(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float) -> Array:
        """Lemma 4.2: |f(x′; w⁺) − f(x′; w)| is at most η rate 1{w*·x > 0} |⟨x, x′⟩| |⟨e^{−rate M t}(w(0) − w*), x⟩|."""
        times, (x, _), v = as_times(t), split(source, self.size), as_vectors(target, self.size, "target")
        push = as_step(step_size) * np.abs(self._push(np.atleast_1d(times), np.atleast_2d(x)))
        return kept(push[:, :, None] * np.abs(np.atleast_2d(x) @ np.atleast_2d(v).T), times, x, v)

    def late_value(self, source: Source, target: ArrayLike) -> Array:
        """Theorem 4.3: from t* on S_rel is at least |⟨x, x′⟩|/‖x‖², and equal to it (see `late_time`), [n, m]."""
        (x, _), v = split(source, self.size), as_vectors(target, self.size, "target")
        value = np.abs(np.atleast_2d(x) @ np.atleast_2d(v).T) / (np.atleast_2d(x) ** 2).sum(1)[:, None]
        return kept(value, np.zeros(()), x, v)

    def late_time(self, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """A t* after which w·x and w·x′ are positive before and after the step, so that S_rel is `late_value`, [n, m].

        Where w*·v > 0, both are positive once e^{−rate λ_min t} ‖w(0) − w*‖ (‖v‖ + η rate ‖x‖ |⟨x, v⟩|) < w*·v.
        It is infinite where x or x′ is not on the side of w*.
        """
        (x, _), v = split(source, self.size), as_vectors(target, self.size, "target")
        inputs, others = np.atleast_2d(x), np.atleast_2d(v)
        size = np.linalg.norm(inputs, axis=1)
        push = as_step(step_size) * self.rate * size
        needs_source = self._time(inputs @ self.star, size + push * size**2)
        reach = np.linalg.norm(others, axis=1) + push[:, None] * np.abs(inputs @ others.T)
        needs_target = self._time(np.broadcast_to(others @ self.star, reach.shape), reach)
        return kept(np.maximum(needs_source[:, None], needs_target), np.zeros(()), x, v)

    def _push(self, times: Array, inputs: Array) -> Array:
        """rate · 1{w*·x > 0} (w* − w(t))·x, [t, n]: how far a step of size 1 moves w along x (eq. 9)."""
        return self.rate * (inputs @ self.star > 0) * (self.missing(times) @ inputs.T)

    def _time(self, margin: Array, reach: Array) -> Array:
        far = np.linalg.norm(self.star - self.start) * reach
        within = np.where(margin > 0, far / np.where(margin > 0, margin, 1.0), np.inf)
        return np.log(np.maximum(within, 1.0)) / (self.rate * self.spectrum[0][0])


def modified_sgd(w: ArrayLike, w_star: ArrayLike, inputs: Iterable[ArrayLike], *, step_size: float) -> Iterator[Array]:
    """Algorithm 1: w ← w + η 1{y > 0} (y − w·x) x with y = max(0, w*·x), one input after another.

    Yields w after every step. With w [runs, d] and inputs of [runs, d] a step, all runs advance together.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2000, 3))
    >>> *_, w = modified_sgd(np.zeros(3), np.ones(3), x, step_size=0.05)
    >>> bool(np.allclose(w, 1))
    True
    """
    now, star = np.asarray(w, dtype=np.float64), np.asarray(w_star, dtype=np.float64)
    positive(step_size, "step_size")
    for given in inputs:
        x = np.asarray(given, dtype=np.float64)
        label = np.maximum(x @ star, 0.0)
        error = (label > 0) * (label - (now * x).sum(-1))
        now = now + step_size * error[..., None] * x
        yield now
