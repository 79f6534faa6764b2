"""How the locality ratio developed over training: an interval at every probe, and when it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.statistics.bootstrap import quantiles, redrawn
from local_elasticity.statistics.change_point import change_point, log_of
from local_elasticity.statistics.class_blocks import sampled
from local_elasticity.statistics.locality import SIGNIFICANT, quotient


@dataclass(frozen=True)
class Development:
    """The ratio of other classes to the own class over training.

    Attributes:
        ratio: as `locality` gives it, at every probe.
        low, high: a bootstrap interval at every probe; examples are resampled within their classes.
        step: the change point of log(ratio), as `change_point` gives it: the first probe at the new level. NaN where a
            steady drift explains the series as well.
        step_low, step_high: its interval over the same resamples, from the last probe before.
        p_value: of the change point, against a steady drift.
        steepest: the two neighbouring probes between which the ratio fell fastest per step; None if it is not clearly
            lower at the end than at the beginning.
    """

    ratio: np.ndarray
    low: np.ndarray
    high: np.ndarray
    step: float
    step_low: float
    step_high: float
    p_value: float
    steepest: tuple[float, float] | None


def development(
    steps: Sequence[float],
    ratio: np.ndarray,
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    *,
    square: bool,
    level: float = 0.95,
    resamples: int = 50,
    seed: int = 0,
) -> Development:
    """Follow the locality ratio [t] of similarities [t, n, m] at the given steps.

    >>> classes = np.arange(20) % 2
    >>> same = classes[:, None] == classes
    >>> noise = np.random.default_rng(0).lognormal(sigma=0.1, size=(8, 20, 20))
    >>> ratio = np.array([0.9, 0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.2])
    >>> values = noise * np.where(same, 1.0, ratio[:, None, None])
    >>> found = development(range(8), ratio, values, classes, classes, square=True)
    >>> found.step_low, found.step
    (3.0, 4.0)
    """
    again = _resampled(values, rows, columns, square, resamples, np.random.default_rng(seed))
    low, high = np.array([quantiles(one, level) for one in again.T]).T
    logs = log_of(ratio)
    found = change_point(steps, logs)
    step = step_low = step_high = float("nan")
    if found.p_value < SIGNIFICANT:
        cuts = np.array([change_point(steps, log_of(one), resamples=0).step for one in again])
        step, (step_low, step_high) = found.step, quantiles(cuts, level)
        before = [one for one in steps if one < min(step, step_low)]
        step_low, step_high = float(before[-1]), max(step, step_high)
    steepest = _steepest(steps, ratio) if _fell(again, level) else None
    return Development(ratio, low, high, step, step_low, step_high, found.p_value, steepest)


def since(steps: Sequence[float], low: np.ndarray, least: float) -> float:
    """The first step from which on the lower end of an interval stays above a bound; NaN where it does not at the end.

    >>> since([0, 10, 20, 30], np.array([1.0, 1.4, 1.2, 1.5]), 1.25)
    30.0
    >>> since([0, 10], np.array([1.4, np.nan]), 1.25)
    nan
    """
    above = np.asarray(low) > least
    if not len(above) or not above[-1]:
        return float("nan")
    below = np.flatnonzero(~above)
    return float(steps[0 if not len(below) else below[-1] + 1])


def _resampled(
    values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool, resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """The ratio at every probe in every resample, [r, t], from a sample of the examples; one resample has the same
    examples at all probes."""
    i = sampled(rows, rng)
    j = i if square else sampled(columns, rng)
    some = np.array(values[:, i][:, :, j], dtype=np.float32)
    some[~np.isfinite(some)] = np.nan
    found = np.empty((resamples, len(values)))
    for r, (a, b) in enumerate(redrawn(rng, rows[i], columns[j], resamples, square=square)):
        same, itself = rows[i][a][:, None] == columns[j][b], square & (i[a][:, None] == j[b])
        drawn = some[:, a][:, :, b]
        within, between = (_medians(drawn[:, chosen]) for chosen in (same & ~itself, ~same))
        found[r] = quotient(between, within)
    return found


def _medians(values: np.ndarray) -> np.ndarray:
    """Of the known numbers in every row."""
    known = np.isfinite(values)
    if known.all() and values.shape[1]:
        return np.asarray(np.median(values, axis=1))
    return np.array([np.median(row[at]) if at.any() else np.nan for row, at in zip(values, known, strict=True)])


def _fell(again: np.ndarray, level: float) -> bool:
    """Whether the ratio is lower at the last probe than at the first, in the interval of their difference."""
    known = np.flatnonzero(np.isfinite(again).any(0))
    if len(known) < 2:
        return False
    return bool(quantiles(again[:, known[-1]] - again[:, known[0]], level)[1] < 0)


def _steepest(steps: Sequence[float], ratio: np.ndarray) -> tuple[float, float] | None:
    t, v = np.asarray(steps, dtype=float), log_of(ratio)
    t, v = t[np.isfinite(v)], v[np.isfinite(v)]
    if len(v) < 2 or not (np.diff(v) < 0).any():
        return None
    at = int((np.diff(v) / np.diff(t)).argmin())
    return float(t[at]), float(t[at + 1])
