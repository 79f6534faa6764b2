"""What all models meet: the protocol, the flow by numbers, and the ratio that says when a source stands still."""

from __future__ import annotations

import warnings
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp

Array = NDArray[np.float64]

Source = ArrayLike | tuple[ArrayLike, ArrayLike]
"""Where the step is taken: (inputs, labels), or inputs alone where the model knows the label."""

ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""A change that is smaller than this share of the terms it is made of is not distinguished from rounding."""


class StillSource(RuntimeWarning):
    """A source's own prediction does not move, so that S_rel is 0/0 there: NaN."""


class Velocity(Protocol):
    """What can be integrated: dw/dt = velocity(w)."""

    def velocity(self, w: Array) -> Array:
        """dw/dt at w, in the shape of w."""


@runtime_checkable
class Flow(Velocity, Protocol):
    """A gradient flow dw/dt = velocity(w) and the relative similarity S_rel along it.

    Arguments are always (source, target). Leading axes are kept: n sources, m targets and a vector of t times give
    [t, n, m]; a single source, target or time has no axis.
    """

    @property
    def start(self) -> Array:
        """w(0)."""

    def w(self, t: ArrayLike) -> Array:
        """w(t), [t, *shape of w]."""

    def relative(self, t: ArrayLike, source: Source, target: ArrayLike, *, step_size: float = 0.0) -> Array:
        """S_rel(t) of source and target: the limit of small steps, or the exact one of a finite step_size."""


def integrate(flow: Velocity, w0: ArrayLike, t: ArrayLike, *, tolerance: float = 1e-12) -> Array:
    """w(t) of any flow by numbers: an explicit Runge-Kutta method of order 8 at the given relative tolerance.

    >>> import numpy as np
    >>> from local_elasticity.theory import DiagonalQuadratic, integrate
    >>> flow = DiagonalQuadratic(a=[1.0, 4.0], b=[1.0, 1.0], w0=[0.7, 1.4], rate=0.1)
    >>> t = np.linspace(0, 5, 6)
    >>> bool(np.allclose(integrate(flow, flow.start, t), flow.w(t), atol=1e-10))
    True
    """
    times, start = as_times(t), np.asarray(w0, dtype=np.float64)
    moments, place = np.unique(np.atleast_1d(times), return_inverse=True)
    if moments[-1] == 0:
        return np.broadcast_to(start, times.shape + start.shape).copy()
    solution = solve_ivp(
        lambda _, w: flow.velocity(w.reshape(start.shape)).ravel(),
        (0.0, moments[-1]),
        start.ravel(),
        method="DOP853",
        t_eval=moments,
        rtol=tolerance,
        atol=tolerance * max(1.0, float(np.abs(start).max())) * 1e-2,
    )
    if not solution.success:
        raise ValueError(f"t: the flow could not be integrated to t = {moments[-1]:g} ({solution.message})")
    return solution.y.T[place].reshape(times.shape + start.shape)


def as_times(t: ArrayLike) -> Array:
    """Times as float64: one number or a vector, from 0 on, in order."""
    times = np.asarray(t, dtype=np.float64)
    if times.ndim > 1 or times.size == 0:
        raise ValueError(f"t: expected a time or a vector of times, got shape {times.shape}")
    if not np.isfinite(times).all() or (times < 0).any():
        raise ValueError("t: times begin at 0 and are finite; the flow is not followed backwards")
    if times.ndim == 1 and (np.diff(times) < 0).any():
        raise ValueError("t: times must be in order; pass np.sort(t)")
    return times


def as_vectors(value: ArrayLike, size: int, name: str) -> Array:
    """One vector or a stack of them, of the model's dimension."""
    vectors = np.asarray(value, dtype=np.float64)
    if vectors.ndim not in (1, 2) or vectors.shape[-1] != size:
        raise ValueError(f"{name}: expected vectors of {size} numbers ([{size}] or [n, {size}]), got {vectors.shape}")
    return vectors


def positive(value: float, name: str) -> float:
    """A positive number."""
    if not np.isfinite(value) or value <= 0:
        raise ValueError(f"{name}: expected a positive number, got {value:g}")
    return float(value)


def as_step(step_size: float) -> float:
    """A step size, 0 for the limit."""
    if not np.isfinite(step_size) or step_size < 0:
        raise ValueError(f"step_size: expected 0 for the limit or a positive step, got {step_size:g}")
    return float(step_size)


def split(source: Source, size: int) -> tuple[Array, Array | None]:
    """A source as inputs and labels; labels are None where there are none."""
    inputs, labels = source if isinstance(source, tuple) else (source, None)
    vectors = as_vectors(inputs, size, "source")
    if labels is None:
        return vectors, None
    numbers = np.asarray(labels, dtype=np.float64)
    if numbers.shape != vectors.shape[:-1]:
        raise ValueError(f"source: labels of shape {numbers.shape} do not fit inputs of shape {vectors.shape}")
    return vectors, numbers


def ratio(target_change: Array, source_change: Array, *, scale: Array | float, why: str) -> Array:
    """Target's change over source's, both ≥ 0; NaN, with a warning that says why, where the source stands still.

    `scale` is the size of the terms that the source's change is a sum of: what is below their rounding is no change.
    """
    still = source_change <= ROUNDING * np.asarray(scale)
    if still.any():
        warnings.warn(f"source: S_rel is NaN at {still.mean():.0%} of the values asked for: {why}", StillSource, 3)
    return target_change / np.where(still, np.nan, source_change)


def kept(values: Array, t: Array, source: Array, target: Array) -> Array:
    """[t, n, m] with the axes of single times, sources and targets taken away."""
    return values.reshape(t.shape + source.shape[:-1] + target.shape[:-1])
