"""The panels side by side, and loss and accuracy, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from local_elasticity.papers.dan2021dynamics.claims import POINTS, Runs
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


def draw_locality(runs: Runs) -> Figure:
    """Other classes over the own class (Definition 2, SGD, pooled medians) at training and held-out points, a line for
    each seed; beside it the test loss. A dot is the smallest test loss, a vertical line the end of the paper's epochs.
    """
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.2)
        panels = made.subplots(1, 3, sharex=True)
        curves = {}
        for points in POINTS:
            own, other = (runs.values("sgd", "kl", name, points) for name in ("within", "between"))
            curves[f"other/own, {points} points"] = other / own
        curves["test loss"] = runs.curves("test loss")
        for axes, (title, values) in zip(panels, curves.items(), strict=True):
            for run, curve in zip(runs.found, values, strict=True):
                (line,) = axes.plot(runs.steps, curve, linewidth=0.9)
                best = run["moments"]["steps"]["best"]
                axes.plot(runs.steps[best], curve[best], ".", color=line.get_color(), markersize=5)
            axes.axvline(runs.found[0]["arms"]["epochs"], color="0.6", linewidth=0.6)
            axes.set(title=title, xlabel="step")
        panels[1].sharey(panels[0])
        for axes in panels[:2]:
            axes.axhline(1, color="0.4", linewidth=0.6)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
    return made


def draw_progress(runs: Runs) -> Figure:
    """Figures 15 to 17: loss and accuracy over training."""
    with mpl.rc_context(STYLE):
        made = figure(ONE_COLUMN, 1.8)
        for axes, name in zip(made.subplots(1, 2), ("loss", "accuracy"), strict=True):
            _band(axes, runs.steps, runs.curves(name), COLOURS[0], None, 1.4)
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
