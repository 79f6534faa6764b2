"""The panels side by side, and loss and accuracy, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from local_elasticity.papers.dan2021dynamics.claims import Runs
from local_elasticity.report.figures import COLOURS, ONE_COLUMN, STYLE, TWO_COLUMNS, figure


def draw_panels(runs: Runs, panels: Mapping[str, tuple[str, str]], reduction: str) -> Figure:
    """A column for each panel, a row for each source class; mean and standard deviation over seeds."""
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 5.0)
        grid = made.subplots(len(runs.classes), len(panels), sharex=True, sharey="col")
        for column, (title, (step, measure)) in zip(grid.T, panels.items(), strict=True):
            values = runs.values(step, measure, reduction)
            column[0].set_title(title.replace(", ", "\n"))
            for i, axes in enumerate(column):
                _draw_source(axes, runs, values[:, :, i])
            column[0].set_ylim(0, _ceiling(values))
            column[-1].set_xlabel("step")
        for axes, source in zip(grid[:, 0], runs.classes, strict=True):
            axes.set_ylabel(f"source: {source}")
        handles, names = grid[0, 0].get_legend_handles_labels()
        what = "mean of all pairs (Definition 3)" if reduction == "mean" else "median without self-pairs"
        made.legend(handles, names, loc="outside lower center", ncols=len(names), title=f"{what}; targets:")
    return made


def draw_progress(runs: Runs) -> Figure:
    """Figures 15 to 17: loss and accuracy over training."""
    with mpl.rc_context(STYLE):
        made = figure(ONE_COLUMN, 1.8)
        for axes, name, curves in zip(
            made.subplots(1, 2), ("loss", "accuracy"), (runs.loss, runs.accuracy), strict=True
        ):
            _band(axes, runs.steps, curves, COLOURS[0], None, 1.4)
            axes.set(xlabel="step", title=name)
    return made


def _draw_source(axes: Any, runs: Runs, values: np.ndarray) -> None:
    for j, (colour, target) in enumerate(zip(COLOURS, runs.classes, strict=False)):
        _band(axes, runs.steps, values[:, :, j], colour, target, 1.2)


def _band(axes: Any, steps: np.ndarray, curves: np.ndarray, colour: str, name: str | None, width: float) -> None:
    mean, sd = np.nanmean(curves, 0), np.nanstd(curves, 0)
    axes.plot(steps, mean, color=colour, label=name, linewidth=width)
    axes.fill_between(steps, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)


def _ceiling(values: np.ndarray) -> float:
    """Room for all but the wildest means."""
    mean = np.nanmean(values, 0)
    return 1.1 * float(np.nanquantile(mean, 0.99)) + 1e-3
