"""Curves over training: how similarities of class pairs develop, with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from local_elasticity.measures.registry import axis_of
from local_elasticity.report.figures import COLOURS, STYLE, figure, width_of, wrapped
from local_elasticity.words import in_natural_order

if TYPE_CHECKING:
    import pandas as pd

CLASSES_SHOWN = 6
"""With up to so many classes every pair has its curve; with more, only within and between classes."""

FLATTENS = 50
"""The largest value over the median one, beyond which a linear axis shows the largest alone."""


def history_figure(
    frame: pd.DataFrame, numbers: Sequence[str] = (), columns: int = 2, *, bands: Mapping[str, np.ndarray] | None = None
) -> Figure:
    """A row of panels for every measure: one for each source class, a curve for each target class. With `bands`, one
    panel with the quartiles [steps, 2, 3] of all pairs within and between classes instead. Measures that are numbers
    share a row below, a panel each."""
    if frame.empty:
        raise ValueError("history: there is nothing to draw yet; no probe was taken")
    of_pairs = frame[~frame.measure.isin(numbers)]
    heights = [2.0 * count + 0.3 for count in (of_pairs.measure.nunique(), len(numbers) and 1) if count]
    with mpl.rc_context(STYLE):
        made = figure(width_of(columns), sum(heights))
        parts = made.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        if len(of_pairs):
            draw_pairs(parts[0], of_pairs, bands)
        if numbers:
            draw_numbers(parts[-1], frame, numbers)
    return made


def draw_pairs(part: Any, frame: pd.DataFrame, bands: Mapping[str, np.ndarray] | None = None) -> None:
    """A row for every measure, a panel for every source class; one panel with `bands`."""
    measures, classes = list(frame.measure.unique()), in_natural_order(frame.source_class)
    panels = part.subplots(len(measures), 1 if bands else len(classes), sharex=True, sharey="row", squeeze=False)
    for row, measure in zip(panels, measures, strict=True):
        chosen = frame[frame.measure == measure]
        if bands:
            draw_within_and_between(row[0], sorted(chosen.step.unique()), bands[measure])
        else:
            for axes, source in zip(row, classes, strict=True):
                draw_targets(axes, chosen[chosen.source_class == source], source)
            set_scale(row[0], chosen)
        row[0].set_ylabel(wrapped(axis_of(measure)))
    for axes in panels[-1]:
        axes.set_xlabel("training step")
    handles, names = panels[0, 0].get_legend_handles_labels()
    part.legend(handles, names, loc="outside upper center", ncols=2 if bands else 3)


def draw_numbers(part: Any, frame: pd.DataFrame, numbers: Sequence[str]) -> None:
    """A panel for every measure of features."""
    for axes, name in zip(part.subplots(1, len(numbers), squeeze=False)[0], numbers, strict=True):
        curve = frame[frame.measure == name]
        axes.plot(curve.step, curve.value, color=COLOURS[0], marker=".")
        axes.set(xlabel="training step", title=name)


def set_scale(axes: Any, frame: pd.DataFrame) -> None:
    """A linear axis; a logarithmic one where the largest value would flatten all other curves."""
    known = frame.value[np.isfinite(frame.value)]
    if len(known) and known.min() > 0 and known.max() > FLATTENS * known.median():
        axes.set_yscale("log")
        axes.set_ylim(known.min() / 2, known.max() * 2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(*readable_range(frame))


def readable_range(frame: pd.DataFrame) -> tuple[float | None, float | None]:
    """Limits that keep the curves readable: bands are cut off beyond once the curves' own range on either side."""
    known = frame[np.isfinite(frame.value)]
    if known.empty:
        return None, None
    low, high = float(known.value.min()), float(known.value.max())
    span = (high - low) or abs(high) or 1.0
    bottom, top = max(low - span, float(known.low.min())), min(high + span, float(known.high.max()))
    return bottom - 0.05 * span, top + 0.05 * span


def draw_targets(axes: Any, part: pd.DataFrame, source: Any) -> None:
    """The curves of one source class; its own class is drawn thicker."""
    for colour, target in zip(COLOURS * 4, in_natural_order(part.target_class), strict=False):
        curve, own = part[part.target_class == target], str(target) == str(source)
        axes.plot(
            curve.step, curve.value, color=colour, linewidth=1.8 if own else 1.0, label=f"target: {target}", marker="."
        )
        axes.fill_between(curve.step, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(f"source: {source}")


def draw_within_and_between(axes: Any, steps: Sequence[int], bands: np.ndarray) -> None:
    """Medians over all pairs of the same and of different classes, with quartiles: bands [steps, 2, 3]."""
    named = {"same class": bands[:, 0], "other classes": bands[:, 1]}
    for colour, (name, band) in zip(COLOURS, named.items(), strict=False):
        low, middle, high = band.T
        axes.plot(steps, middle, color=colour, label=name, marker=".")
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
