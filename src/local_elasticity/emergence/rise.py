"""Rise curves: what a quantity gains as train–unseen similarity grows, as a share of its whole gain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rise_curve(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """u(s) = (Y(s) − Y(0))/(Y(s_max) − Y(0)), values in the order of s, the first at s = 0.

    A quantity that ends where it began has no rise: NaN throughout.

    >>> rise_curve([1.0, 2.0, 5.0]).tolist()
    [0.0, 0.25, 1.0]
    """
    Y = np.asarray(values, dtype=float)
    if Y.ndim != 1 or len(Y) < 2:
        raise ValueError("values: expected at least two numbers in the order of s")
    if not np.isfinite(Y).all():
        raise ValueError("values: they hold NaN or infinity")
    whole = Y[-1] - Y[0]
    return (Y - Y[0]) / whole if whole else np.full(len(Y), np.nan)


def half_rise(s: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> float:
    """The s at which u first reaches ½, between the values by a straight line; NaN where nothing rises.

    >>> half_rise([0.0, 1.0, 2.0], [1.0, 2.0, 5.0])
    1.3333333333333333
    """
    s = np.asarray(s, dtype=float)
    u = rise_curve(values)
    if s.shape != u.shape or (np.diff(s) <= 0).any():
        raise ValueError("s: expected as many rising numbers as there are values")
    if np.isnan(u).any():
        return float("nan")
    after = int(np.flatnonzero(u >= 0.5)[0])
    share = (0.5 - u[after - 1]) / (u[after] - u[after - 1])
    return float(s[after - 1] + share * (s[after] - s[after - 1]))
