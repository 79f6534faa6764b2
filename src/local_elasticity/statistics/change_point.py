"""A series over training: when half of its change has happened, and whether it has two phases.

The test of two phases knows that neighbouring probes resemble each other, and that measures drift: both look like two
levels to a test that takes noise for independent. The null is a straight line plus a first-order autoregression, the
alternative the same with a jump or a kink somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Series = Sequence[float] | np.ndarray

LATE = 0.25
"""The last share of the probes, whose median stands for the end of training."""

FEWEST = 4
"""Probes below which nothing is concluded about how a run developed."""

MEMORIES = np.linspace(0.0, 0.95, 20)
"""How much noise may remember of itself from one probe to the next: φ in x_t = φ x_{t−1} + e_t."""

CUTS = 100
"""The most places of a long series at which a change is tried, evenly spaced."""

NOTHING = 1e-18
"""What is left of a series of variance 1 where a fit is exact."""


@dataclass(frozen=True)
class ChangePoint:
    """Where a series changes its level: the first step of the new level, both levels, a test against a drift."""

    step: float
    before: float
    after: float
    p_value: float


def last_quarter(values: np.ndarray) -> np.ndarray:
    """The last quarter along the last axis, at least one value: it stands for the end of training.

    >>> last_quarter(np.arange(8)).tolist()
    [6, 7]
    """
    return values[..., -max(1, round(LATE * values.shape[-1])) :]


def log_of(ratio: np.ndarray) -> np.ndarray:
    """Logarithms; NaN where a ratio is not positive. On this scale a ratio, its inverse and its powers develop alike.

    >>> log_of(np.array([1.0, 0.0])).tolist()
    [0.0, nan]
    """
    return np.log(np.where(np.isfinite(ratio) & (ratio > 0), ratio, np.nan))


def half_life(steps: Series, values: Series) -> float:
    """The step by which half of the change from the first value to the late level has happened, interpolated.

    The late level is the median of the last quarter. NaN where the two are equal.

    >>> half_life([0, 10, 20, 30, 40], [1.0, 0.6, 0.4, 0.2, 0.2])
    10.0
    """
    t, v = _finite(steps, values)
    if len(v) < 2:
        return float("nan")
    start, end = v[0], float(np.median(last_quarter(v)))
    if start == end:
        return float("nan")
    gone = (v - start) / (end - start)
    reached = np.flatnonzero(gone >= 0.5)
    if not len(reached):
        return float("nan")
    i = int(reached[0])
    share = (0.5 - gone[i - 1]) / (gone[i] - gone[i - 1])
    return float(t[i - 1] + share * (t[i] - t[i - 1]))


def change_point(
    steps: Series, values: Series, *, resamples: int = 499, seed: int = 0, shortest: int = 3
) -> ChangePoint:
    """The two levels that describe a series best, and how often a steady drift would look as much like two phases.

    The cut is where two levels explain most of the variance. `p_value` tests a jump or a kink, wherever it fits best,
    against a straight line in `steps` whose noise remembers itself from probe to probe (`drift_p_value`): small for a
    jump and for a decay that comes to rest, and seldom for a slope or for noise that wanders.

    Args:
        shortest: the least number of probes in a phase.

    >>> change_point(range(12), [1.0, 1.1, 0.9, 1.0, 0.3, 0.2, 0.3, 0.25, 0.3, 0.2, 0.25, 0.3]).step
    4.0
    """
    t, v = _finite(steps, values)
    if len(v) < 2 * shortest or np.ptp(v) == 0:
        return ChangePoint(float("nan"), float("nan"), float("nan"), 1.0)
    i = _best_cut(v, shortest)
    p_value = drift_p_value(t, v, shortest=shortest, resamples=resamples, seed=seed)
    return ChangePoint(float(t[i]), float(v[:i].mean()), float(v[i:].mean()), p_value)


def drift_p_value(
    t: np.ndarray, values: np.ndarray, *, shortest: int = 3, resamples: int = 499, seed: int = 0
) -> float:
    """How often a steady drift with noise looks as much like two phases as this series does.

    The statistic is the gain in log-likelihood, maximal over φ, from a jump or a kink added to the line, at the best of
    all cuts. φ of the null is estimated by restricted likelihood, which fitted lines do not bias; `resamples` series
    with that φ are simulated and fitted in the same way. The level of the line, its slope and the noise's size cancel.

    >>> t, noise = np.arange(40.0), 0.1 * np.random.default_rng(0).standard_normal(40)
    >>> drift_p_value(t, np.exp(-t / 5) + noise) < 0.05, drift_p_value(t, 1 - t / 40 + noise) < 0.05
    (True, False)
    """
    whitened = [_Whitened.by(memory, t, shortest) for memory in MEMORIES]
    series = (values - values.mean()) / values.std()
    if whitened[0].squares(series[None])[0][0] < NOTHING * len(t):
        return 1.0
    gain, place = _fit(series[None], whitened)
    noise = _autoregression(MEMORIES[place[0]], len(t), resamples, np.random.default_rng(seed))
    reached = int((_fit(noise, whitened)[0] >= gain[0]).sum())
    return (1 + reached) / (1 + resamples)


@dataclass(frozen=True)
class _Whitened:
    """Lines and changes as they look where noise of this memory is made independent: x_t − φ x_{t−1}.

    `line` [n, 2] and every column of `changes` [n, 2·cuts] are orthonormal to each other; `scale` is ½ log |V⁻¹| and
    `volume` ½ log |Xᵀ V⁻¹ X| of the noise's covariance V and the line's columns X.
    """

    memory: float
    line: np.ndarray
    changes: np.ndarray
    scale: float
    volume: float

    @classmethod
    def by(cls, memory: float, t: np.ndarray, shortest: int) -> _Whitened:
        n = len(t)
        t = (t - t.mean()) / np.ptp(t)
        cuts = np.linspace(shortest, n - shortest, min(CUTS, n - 2 * shortest + 1)).round().astype(int)
        jumps = (np.arange(n) >= cuts[:, None]).astype(float)
        kinks = np.maximum(t - t[cuts, None], 0.0)
        line, triangle = np.linalg.qr(_white(np.stack([np.ones(n), t]), memory).T)
        changes = _white(np.concatenate([jumps, kinks]), memory).T
        whole = np.linalg.norm(changes, axis=0)
        for _ in range(2):  # once more, since the first leaves rounding
            changes = changes - line @ (line.T @ changes)
        own = np.linalg.norm(changes, axis=0)
        seen = own > 1e-8 * whole
        volume = float(np.log(np.abs(np.diag(triangle))).sum())
        return cls(memory, line, changes[:, seen] / own[seen], 0.5 * np.log(1 - memory**2), volume)

    def squares(self, series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each row, the squares that a line leaves, and what the best change explains of them."""
        z = _white(series, self.memory)
        left: np.ndarray = ((z - z @ self.line @ self.line.T) ** 2).sum(1)
        return left, ((z @ self.changes) ** 2).max(1)


def _fit(series: np.ndarray, whitened: Sequence[_Whitened]) -> tuple[np.ndarray, np.ndarray]:
    """For each row: the gain in log-likelihood from a change, and the place of the null's φ among `whitened`."""
    n = series.shape[1]
    scale, volume = (np.array([[getattr(one, name)] for one in whitened]) for name in ("scale", "volume"))
    left, explained = np.stack([one.squares(series) for one in whitened], axis=1)
    drift = scale - n / 2 * np.log(left)
    change = scale - n / 2 * np.log(np.maximum(left - explained, NOTHING * left))
    restricted = scale - volume - (n - 2) / 2 * np.log(left)
    return change.max(0) - drift.max(0), restricted.argmax(0)


def _white(rows: np.ndarray, memory: float) -> np.ndarray:
    return np.concatenate([np.sqrt(1 - memory**2) * rows[:, :1], rows[:, 1:] - memory * rows[:, :-1]], axis=1)


def _autoregression(memory: float, length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Stationary series x_t = φ x_{t−1} + e_t, [count, length]."""
    noise = rng.standard_normal((count, length))
    noise[:, 0] /= np.sqrt(1 - memory**2)
    for i in range(1, length):
        noise[:, i] += memory * noise[:, i - 1]
    return noise


def _finite(steps: Series, values: Series) -> tuple[np.ndarray, np.ndarray]:
    t, v = np.asarray(list(steps), dtype=float), np.asarray(list(values), dtype=float)
    if t.shape != v.shape:
        raise ValueError(f"steps, values: {len(t)} steps do not fit {len(v)} values; give one for each")
    known = np.isfinite(v)
    return t[known], v[known]


def _best_cut(values: np.ndarray, shortest: int) -> int:
    """Where the second of the two levels that explain most of the variance begins."""
    n = len(values)
    cuts = np.arange(shortest, n - shortest + 1)
    sums = (values - values.mean()).cumsum()[cuts - 1]
    return int(cuts[(sums**2 * (1 / cuts + 1 / (n - cuts))).argmax()])
