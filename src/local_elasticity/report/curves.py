"""Curves over training: how similarities of class pairs develop, with bands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

if TYPE_CHECKING:
    import pandas as pd

CLASSES_SHOWN = 6
"""With up to so many classes every pair has its curve; with more, only within and between classes."""


def history_figure(frame: pd.DataFrame) -> Figure:
    """A row of panels for every measure: one for each source class, a curve for each target class."""
    if frame.empty:
        raise ValueError("history: there is nothing to draw yet; no probe was taken")
    measures, classes = list(frame.measure.unique()), sorted(frame.source_class.unique(), key=str)
    few = len(classes) <= CLASSES_SHOWN
    columns = len(classes) if few else 1
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.0 * len(measures) + 0.3)
        panels = made.subplots(len(measures), columns, sharex=True, sharey="row", squeeze=False)
        for row, measure in zip(panels, measures, strict=True):
            part = frame[frame.measure == measure]
            if few:
                for axes, source in zip(row, classes, strict=True):
                    draw_targets(axes, part[part.source_class == source], source)
            else:
                draw_within_and_between(row[0], part)
            row[0].set_ylabel(f"{measure}")
        for axes in panels[-1]:
            axes.set_xlabel("step")
        handles, names = panels[0, 0].get_legend_handles_labels()
        made.legend(handles, names, loc="outside upper center", ncols=min(len(names), 6))
    return made


def draw_targets(axes: Any, part: pd.DataFrame, source: Any) -> None:
    """The curves of one source class; its own class is drawn thicker."""
    for colour, (target, curve) in zip(COLOURS * 4, part.groupby("target_class", sort=True), strict=False):
        own = str(target) == str(source)
        axes.plot(
            curve.step, curve.value, color=colour, linewidth=1.8 if own else 1.0, label=f"target: {target}", marker="."
        )
        axes.fill_between(curve.step, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)
    axes.set_title(f"source: {source}")


def draw_within_and_between(axes: Any, part: pd.DataFrame) -> None:
    """Medians over pairs of the same and of different classes, with quartiles."""
    same = part.source_class.astype(str) == part.target_class.astype(str)
    for colour, name, rows in zip(COLOURS, ("same class", "other classes"), (part[same], part[~same]), strict=False):
        low, middle, high = (rows.groupby("step").value.quantile(q) for q in (0.25, 0.5, 0.75))
        axes.plot(middle.index, middle, color=colour, label=name, marker=".")
        axes.fill_between(middle.index, np.asarray(low), np.asarray(high), color=colour, alpha=0.2, linewidth=0)
