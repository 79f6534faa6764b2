"""What the experiments of this paper share when they conclude: values over seeds, and bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from local_elasticity.papers.experiment import Curve, Measured

Runs = list[Measured]


def over_seeds(runs: Runs, name: str) -> np.ndarray:
    """[seeds, values]."""
    return np.array([run[name] for run in runs], dtype=float)


def mean_of(runs: Runs, name: str) -> np.ndarray:
    return np.asarray(over_seeds(runs, name).mean(0))


def band(name: str, x: np.ndarray, values: np.ndarray) -> Curve:
    """The mean over seeds with its range."""
    rows = [[round(float(v), 6) for v in row] for row in (x, values.mean(0), values.min(0), values.max(0))]
    return Curve(name, *rows)


def draw_band(axes: Any, x: np.ndarray, values: np.ndarray, **options: Any) -> None:
    """A line for the mean over seeds, a shade for their range."""
    (line,) = axes.plot(x, values.mean(0), **options)
    axes.fill_between(x, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
