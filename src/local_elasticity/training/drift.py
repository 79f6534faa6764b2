"""Is a series one steady drift with noise, or are there two phases in it? A test that knows of the noise's memory.

Neighbouring probes resemble each other, and measures drift: both look like two levels to a test that takes noise for
independent. Here the null is a straight line plus a first-order autoregression, the alternative the same with a jump or
a kink somewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MEMORIES = np.linspace(0.0, 0.95, 20)
"""How much noise may remember of itself from one probe to the next: φ in x_t = φ x_{t−1} + e_t."""

CUTS = 100
"""In a long series a change is looked for at so many places, evenly spread."""

NOTHING = 1e-18
"""What is left of a series of variance 1 where a fit is exact."""


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
