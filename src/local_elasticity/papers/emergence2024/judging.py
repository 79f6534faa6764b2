"""What the experiments of this paper share when they conclude: ranks, fits, bands and panels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from local_elasticity.papers.experiment import Curve, Measured, Unit

Runs = list[Measured]


def runs_of(measured: Mapping[Unit, Measured], part: str) -> Runs:
    """What was measured for a part, a seed after another."""
    return [found for unit, found in measured.items() if unit.part == part]


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Rank correlation, ties at their mean rank; NaN where one side is constant."""
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else float("nan")


def pearson(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Linear correlation; NaN where one side is constant."""
    return float(np.corrcoef(x, y)[0, 1]) if np.std(x) and np.std(y) else float("nan")


def explained(measured: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """R² = 1 − Σ(measured − predicted)²/Σ(measured − mean)²: no line is fitted in between."""
    y, f = np.asarray(measured), np.asarray(predicted)
    return float(1 - ((y - f) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def log_slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The exponent p of y ~ xᵖ, by least squares in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def over_seeds(runs: Runs, name: str) -> np.ndarray:
    """[seeds, values]."""
    return np.array([run[name] for run in runs], dtype=float)


def mean_of(runs: Runs, name: str) -> np.ndarray:
    return np.asarray(over_seeds(runs, name).mean(0))


def said(values: Iterable[float], digits: int = 3) -> str:
    """Lowest, mean and highest over seeds, in words."""
    v = np.array(list(values))
    return f"{v.mean():.{digits}f} ({v.min():.{digits}f} … {v.max():.{digits}f})"


def band(name: str, x: np.ndarray, values: np.ndarray) -> Curve:
    """The mean over seeds with its range."""
    rows = [[round(float(v), 6) for v in row] for row in (x, values.mean(0), values.min(0), values.max(0))]
    return Curve(name, *rows)


def draw_band(axes: Any, x: np.ndarray, values: np.ndarray, **options: Any) -> None:
    """A line for the mean over seeds, a shade for their range."""
    (line,) = axes.plot(x, values.mean(0), **options)
    axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
