"""A two-layer ReLU net whose first layer is trained (He & Su §2.3 and A.3, eq. 2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
from local_elasticity.theory.relu import relu_change


@dataclass(frozen=True, eq=False)
class TwoLayerRelu:
    """f(x) = Σ_r a_r max(0, w_r·x̄) with x̄ = (x, 1) and a_r = ±1 fixed, trained on ½(y − f)² by gradient flow.

        lim_{η→0} [f(x′; w⁺) − f(x′)] / [f(x; w⁺) − f(x)]
            = (x̄·x̄′/‖x̄‖²) · #{r: on at x and x′} / #{r: on at x}                          (eq. 2.4; any width)
            → (x̄·x̄′/‖x̄‖²) (1 − angle(x̄, x̄′)/π) for w ~ N(0, I) and infinite width

    At a finite step the printed 1 + o(1) needs η√m → 0: the loss gradient is of order √m, and as many neurons flip.
    w(t) has no closed form; `weights` integrates.

    Args:
        w0, signs: w(0), [m, d+1], the last column meets the 1; a, [m].
        inputs, labels: what it is trained on, [N, d] and [N].
        rate: what multiplies the gradient of the mean loss.

    >>> import numpy as np
    >>> net = TwoLayerRelu(np.eye(3), [1, 1, -1], inputs=np.eye(2), labels=[0.0, 1.0], rate=0.1)
    >>> float(net.relative(0.0, source=([2.0, 1.0], 0.0), target=[1.0, -1.0]))
    0.2222222222222222
    >>> TwoLayerRelu.infinite_width([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]).round(3)
    array([[1.   , 0.333]])
    """

    w0: ArrayLike
    signs: ArrayLike
    inputs: ArrayLike
    labels: ArrayLike
    rate: float

    def __post_init__(self) -> None:
        positive(self.rate, "rate")
        if self.start.ndim != 2 or self._signs.shape != self.start.shape[:1]:
            raise ValueError(f"signs: expected [m] with w0 [m, d+1], got {self._signs.shape} with {self.start.shape}")
        if not np.isin(self._signs, (-1.0, 1.0)).all():
            raise ValueError("signs: the second layer is made of −1 and 1")
        if np.shape(self.labels) != (len(self._lifted),):
            raise ValueError(f"labels: expected [{len(self._lifted)}], got {np.shape(self.labels)}")

    @cached_property
    def start(self) -> Array:
        return np.asarray(self.w0, dtype=np.float64)

    @cached_property
    def _signs(self) -> Array:
        return np.asarray(self.signs, dtype=np.float64)

    @cached_property
    def _lifted(self) -> Array:
        return lifted(as_vectors(self.inputs, self.size, "inputs"))

    @property
    def size(self) -> int:
        return int(self.start.shape[1]) - 1

    def predict(self, w: Array, inputs: ArrayLike) -> Array:
        """f, [n], at weights [m, d+1]."""
        return np.maximum(lifted(inputs) @ w.T, 0.0) @ self._signs

    def velocity(self, w: Array) -> Array:
        """−rate times the gradient of the mean of ½(y − f)², [m, d+1]."""
        before = self._lifted @ w.T
        error = np.asarray(self.labels, dtype=np.float64) - np.maximum(before, 0.0) @ self._signs
        pull: Array = (error[:, None] * (before >= 0) * self._signs).T @ self._lifted
        return self.rate * pull / len(self._lifted)

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, m, d+1], by numbers."""
        return integrate(self, self.start, t, tolerance=1e-10)

    def loss(self, t: ArrayLike) -> Array:
        """The mean of ½(y − f)², [t]."""
        w = self.w(t).reshape(-1, *self.start.shape)
        wanted = np.asarray(self.labels, dtype=np.float64)
        means = [0.5 * ((self.predict(one, np.atleast_2d(self.inputs)) - wanted) ** 2).mean() for one in w]
        return np.array(means).reshape(as_times(t).shape)

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t), [t, n, m]: |eq. 2.4|, or a finite step with flipping neurons, which needs source = (x, y)."""
        return np.abs(self.signed(t, source, target, step_size=step_size))

    def signed(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """The ratio of eq. 2.4 with its sign, [t, n, m]."""
        times, (x, y), v = as_times(t), split(source, self.size), as_vectors(target, self.size, "target")
        moved, own = self._changes(self.w(np.atleast_1d(times)), (x, y), v, as_step(step_size))
        why = "no neuron is on there, or its loss is at its minimum"
        size = ratio(np.abs(moved), np.abs(own)[..., None], scale=0.0, why=why)
        return kept(size * np.sign(moved) * np.sign(own)[..., None], times, x, v)

    def kernel(self, w: Array, source: ArrayLike, target: ArrayLike) -> Array:
        """lim_{η→0} S_ker (eq. 2.3) at weights w: x̄·x̄′ #{r: on at x and x′}, the first layer's NTK, [n, m]."""
        at_source, at_target = lifted(np.atleast_2d(source)), lifted(np.atleast_2d(target))
        both: Array = (at_source @ w.T >= 0).astype(float) @ (at_target @ w.T >= 0).T.astype(float)
        return at_source @ at_target.T * both

    def remainder(self, w: Array, source: Source, target: ArrayLike, *, step_size: float) -> tuple[Array, Array]:
        """Δ₂ of A.3, what a step changes beyond its linear part, and the bound on |Δ₂| printed there, [n, m] each."""
        (x, y), v = split(source, self.size), as_vectors(target, self.size, "target")
        at_source, at_target = np.atleast_2d(x), np.atleast_2d(v)
        before, step = self._steps(w, at_source, self._push(w, at_source, y, step_size), at_target)
        linear = step * (before[None] >= 0)
        flipped = (before + step >= 0) != (before >= 0)[None]
        beyond = (self._signs * (relu_change(np.broadcast_to(before, step.shape), step) - linear)).sum(-1)
        return beyond, (np.abs(step) * flipped).sum(-1)

    @staticmethod
    def infinite_width(source: ArrayLike, target: ArrayLike) -> Array:
        """The limit of eq. 2.4 for N(0, 1) weights: (x̄·x̄′/‖x̄‖²)(1 − angle/π), [n, m].

        >>> float(TwoLayerRelu.infinite_width([3.0], [3.0])[0, 0])
        1.0
        """
        at_source, at_target = lifted(np.atleast_2d(source)), lifted(np.atleast_2d(target))
        lengths = np.linalg.norm(at_source, axis=1)[:, None], np.linalg.norm(at_target, axis=1)
        units = at_source / lengths[0], at_target / lengths[1][:, None]
        apart = np.linalg.norm(units[0][:, None] - units[1], axis=2)
        together = np.linalg.norm(units[0][:, None] + units[1], axis=2)
        angle = 2 * np.arctan2(apart, together)
        return TwoLayerRelu.linear_net(source, target) * (1 - angle / np.pi)

    @staticmethod
    def linear_net(source: ArrayLike, target: ArrayLike) -> Array:
        """The same ratio of the linear net Σ_r a_r w_r·x̄: x̄·x̄′/‖x̄‖², [n, m].

        >>> TwoLayerRelu.linear_net([[1.0]], [[1.0], [3.0]])
        array([[1., 2.]])
        """
        at_source, at_target = lifted(np.atleast_2d(source)), lifted(np.atleast_2d(target))
        return at_source @ at_target.T / (at_source**2).sum(1)[:, None]

    def _push(self, w: Array, x: Array, y: Array | None, step: float) -> Array:
        """−η ∂L/∂f at each source, [n]."""
        if y is None:
            raise ValueError("source: a finite step depends on the label; pass source=(inputs, labels)")
        return step * (np.atleast_1d(y) - self.predict(w, x))

    def _steps(self, w: Array, x: Array, push: Array, v: Array) -> tuple[Array, Array]:
        """w_r·x̄′ before, [m, width], and what the step on each source adds, [n, m, width] (A.3)."""
        along = push[:, None] * (lifted(x) @ lifted(v).T)
        return lifted(v) @ w.T, along[..., None] * (lifted(x) @ w.T >= 0)[:, None, :] * self._signs

    def _changes(
        self, weights: Array, source: tuple[Array, Array | None], v: Array, step: float
    ) -> tuple[Array, Array]:
        """f(x′; w⁺) − f(x′), [t, n, m], and at the sources themselves, [t, n]; up to a common factor in the limit."""
        x, others = np.atleast_2d(source[0]), np.atleast_2d(v)
        if not step:
            kernels = [(self.kernel(w, x, others), np.diagonal(self.kernel(w, x, x))) for w in weights]
            return np.array([moved for moved, _ in kernels]), np.array([own for _, own in kernels])
        both = np.concatenate([others, x])
        found = []
        for w in weights:
            before, added = self._steps(w, x, self._push(w, x, source[1], step), both)
            found.append((self._signs * relu_change(np.broadcast_to(before, added.shape), added)).sum(-1))
        moved = np.array(found)
        return moved[..., : len(others)], np.diagonal(moved[..., len(others) :], axis1=1, axis2=2)


def lifted(inputs: ArrayLike) -> Array:
    """x̄ = (x, 1)."""
    x = np.asarray(inputs, dtype=np.float64)
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)
