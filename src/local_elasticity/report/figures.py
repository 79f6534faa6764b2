"""Figures for print: one style, colour-blind-safe, saved as PNG and SVG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from local_elasticity.measures.registry import axis_of, is_ratio
from local_elasticity.statistics.class_pairs import read_pairs, summarized
from local_elasticity.statistics.locality import SIGNIFICANT
from local_elasticity.store.atomic import write_whole
from local_elasticity.words import in_natural_order

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

ONE_COLUMN, TWO_COLUMNS = 3.4, 7.0
"""Widths in inches."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which people with any colour vision tell apart."""

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "local_elasticity",
    "image.interpolation": "nearest",
}


def figure(width: float = ONE_COLUMN, height: float = 2.6) -> Figure:
    """An empty figure, on no screen and in no global state."""
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def width_of(columns: int) -> float:
    """The width of one column of print, or of two."""
    if columns not in (1, 2):
        raise ValueError(f"columns: expected 1 or 2, got {columns!r}. To save the figure: S.le.plot().savefig('x.png')")
    return (ONE_COLUMN, TWO_COLUMNS)[columns - 1]


def wrapped(words: str) -> str:
    """Words for an axis, on lines that a small panel has room for."""
    return textwrap.fill(words, LONGEST_LINE)


def save_figure(made: Figure, path: Path) -> list[Path]:
    """Write `path` with the endings .png and .svg; equal figures make equal files."""
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for file, metadata in zip(files, (None, {"Date": None}), strict=True):
        drawn = io.BytesIO()
        with mpl.rc_context(STYLE):
            made.savefig(drawn, format=file.suffix[1:], metadata=metadata)
        write_whole(file, drawn.getvalue(), "figure")
    return files


def similarity_figure(S: xr.DataArray, columns: int = 1) -> Figure:
    """The matrix, rows and columns ordered by class, lines between classes; unresolved pairs are grey."""
    width = width_of(columns)
    with mpl.rc_context(STYLE):
        made = figure(width, 0.88 * width)
        draw_similarity(made.subplots(), S)
    return made


def class_figure(S: xr.DataArray, columns: int = 1) -> Figure:
    """The median of every pair of classes, with its number: rows are the classes of the sources. An example with
    itself does not count, and pairs of classes without a value are grey."""
    width = width_of(columns)
    frame = summarized(read_pairs(S, None, None), "median", "exclude", 0)
    sides = [in_natural_order(frame[name]) for name in ("source_class", "target_class")]
    values = frame["value"].to_numpy(float).reshape([len(names) for names in sides])
    with mpl.rc_context(STYLE):
        made = figure(width, 0.88 * width)
        axes = made.subplots()
        image = _draw_values(axes, values, str(S.attrs.get("measure", "similarity")), "median ")
        _name_classes(axes, sides, image)
    return made


def comparison_figure(before: xr.DataArray, after: xr.DataArray, difference: xr.DataArray, columns: int = 2) -> Figure:
    """Two matrices and their difference side by side."""
    width = width_of(columns)
    with mpl.rc_context(STYLE):
        made = figure(width, 0.36 * width)
        panels = zip(made.subplots(1, 3), (before, after, difference), ("before", "after", "difference"), strict=True)
        for axes, S, title in panels:
            draw_similarity(axes, S, title, "after − before" if title == "difference" else None)
    return made


def seeds_figure(
    before: np.ndarray, after: np.ndarray, words: str, classes: pd.DataFrame | None, paired: bool, columns: int = 2
) -> Figure:
    """The number of each seed on both sides with the means, pairs joined by a line; and the difference of every pair of
    classes, framed where it is clear."""
    width = width_of(columns)
    with mpl.rc_context(STYLE):
        shape = (1, 1) if classes is None else (1, 2) if columns == 2 else (2, 1)
        made = figure(width, {(1, 1): 0.6, (1, 2): 0.42, (2, 1): 1.5}[shape] * width)
        left, *right = made.subplots(*shape, squeeze=False).ravel()
        if paired:
            left.plot([0, 1], [before, after], color="0.7", linewidth=0.8)
        for place, (values, colour) in enumerate(zip((before, after), COLOURS, strict=False)):
            left.plot(np.full(len(values), place), values, "o", markersize=4, alpha=0.7, color=colour)
            known = values[np.isfinite(values)]
            if len(known):
                left.hlines(known.mean(), place - 0.2, place + 0.2, color=colour)
        left.set_xticks([0, 1], labels=[f"before ({len(before)} seeds)", f"after ({len(after)} seeds)"])
        left.set(xlim=(-0.6, 1.6), ylabel=wrapped(words))
        if classes is not None:
            _draw_class_differences(right[0], classes)
    return made


def _draw_class_differences(axes: Any, classes: pd.DataFrame) -> None:
    """The differences of pairs of classes as a matrix; those with p below 0.05 after correction have a frame."""
    sides = [in_natural_order(classes[name]) for name in ("source_class", "target_class")]
    values, p_values = (
        classes[name].to_numpy(float).reshape([len(names) for names in sides]) for name in ("difference", "p_adjusted")
    )
    image = _draw_values(axes, values, "difference", label="difference of means; framed: p < 0.05")
    for row, column in zip(*np.nonzero(p_values < SIGNIFICANT), strict=True):
        axes.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="black", linewidth=1))
    _name_classes(axes, sides, image)


def _name_classes(axes: Any, sides: Sequence[Sequence[Any]], image: Any) -> None:
    """The names of classes along a matrix of them, and the numbers in its cells."""
    for side, names in zip((axes.yaxis, axes.xaxis), sides, strict=True):
        side.set_ticks(range(len(names)), labels=[_shortened(name) for name in names])
    axes.set(xlabel="class of the target", ylabel="class of the source")
    _fit_names(axes)
    _write_numbers(axes, image)


def forecast_figure(before: np.ndarray, forecast: np.ndarray, right: np.ndarray, columns: int = 1) -> Figure:
    """Margins before and as forecast, one dot for each example; those that were wrong before are grey."""
    width = width_of(columns)
    with mpl.rc_context(STYLE):
        made = figure(width, 0.8 * width)
        axes = made.subplots()
        lost = right & ~(forecast > 0)
        groups = (("wrong before", ~right, "0.7"), ("kept", right & ~lost, COLOURS[0]), ("lost", lost, COLOURS[1]))
        for name, rows, colour in groups:
            if rows.any():
                axes.plot(before[rows], forecast[rows], ".", markersize=3, color=colour, label=f"{name}: {rows.sum()}")
        axes.axhline(0, color="0.4", linewidth=0.6)
        axes.axline((0, 0), slope=1, color="0.4", linewidth=0.6, linestyle=":")
        axes.set(xlabel="margin before", ylabel="margin forecast")
        made.legend(loc="outside upper center", ncols=3)
    return made


def step_figure(trials: Sequence[Any], asked: float, recommended: float | None, columns: int = 1) -> Figure:
    """Deviations and rank correlations of the trials of `le.check_step`, with their intervals, over the step size;
    dotted lines are the bounds of its verdicts."""
    width, sizes = width_of(columns), [trial.step_size for trial in trials]
    panels = (("deviation", LEAST_DEVIATION, (0.01, 0.1)), ("rank", -1.0, (0.9, 0.99)))
    with mpl.rc_context(STYLE):
        made = figure(width, 1.1 * width)
        both = made.subplots(2, 1, sharex=True)
        for axes, (name, least, bounds) in zip(both, panels, strict=True):
            value = "rank_correlation" if name == "rank" else name
            middle, low, high = (
                np.maximum([getattr(trial, one) for trial in trials], least)
                for one in (value, f"{name}_low", f"{name}_high")
            )
            axes.vlines(sizes, low, high, color=COLOURS[0], linewidth=1)
            axes.plot(sizes, middle, "o-", markersize=3, linewidth=0.8, color=COLOURS[0])
            for bound in bounds:
                axes.axhline(bound, color="0.6", linewidth=0.6, linestyle=":")
            marked = {f"this step, {asked:g}": asked} | (
                {} if recommended is None else {f"auto, {recommended:g}": recommended}
            )
            for colour, (label, size) in zip(COLOURS[1:], marked.items(), strict=False):
                axes.axvline(size, color=colour, linewidth=0.8, zorder=0, label=label)
        if asked > 0:
            both[0].set(xlim=(min(sizes) / 2, 2 * max(sizes)), xscale="log")
        both[0].set(yscale="log", ylabel="deviation of changes\nfrom small steps")
        both[1].set(xlabel="step size", ylabel="rank correlation\nwith small steps")
        made.legend(*both[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return made


def draw_similarity(axes: Any, S: xr.DataArray, title: str = "", label: str | None = None) -> None:
    """The matrix on given axes, with its colour bar. Where 1 is the source itself, what is beyond it is drawn as 1."""
    rows, row_edges, row_names = _by_class(S, "source")
    columns, column_edges, column_names = _by_class(S, "target")
    _draw_values(axes, S.values[np.ix_(rows, columns)], str(S.attrs.get("measure", "similarity")), label=label)
    if max(len(row_edges), len(column_edges)) <= MOST_LINES:
        for edge in row_edges[1:-1]:
            axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        for edge in column_edges[1:-1]:
            axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    for side, edges, names in ((axes.yaxis, row_edges, row_names), (axes.xaxis, column_edges, column_names)):
        if names:
            side.set_ticks((edges[:-1] + edges[1:]) / 2 - 0.5, labels=[_shortened(name) for name in names])
    axes.set(title=title, xlabel="target", ylabel="source")
    if row_names or column_names:
        _fit_names(axes)


def _draw_values(axes: Any, values: np.ndarray, measure: str, prefix: str = "", label: str | None = None) -> Any:
    """Numbers as colours, and the bar that says what they are."""
    resolved = values[np.isfinite(values)]
    signed = bool(resolved.size and resolved.min() < 0)
    top = float(np.quantile(np.abs(resolved), 0.98)) if resolved.size else 1.0
    if is_ratio(measure):
        top = min(top, 1.0)
    top = top or 1.0
    colours = mpl.colormaps["RdBu_r" if signed else "viridis"].with_extremes(bad="0.7")
    image = axes.imshow(values, cmap=colours, vmin=-top if signed else 0, vmax=top, aspect="auto")
    above, below = bool((resolved > top).any()), bool((resolved < (-top if signed else 0)).any())
    extend = {(True, True): "both", (True, False): "max", (False, True): "min", (False, False): "neither"}[above, below]
    words = prefix + axis_of(measure) if label is None else label
    grey = "; grey: unresolved" if label is None and resolved.size < values.size else ""
    axes.get_figure().colorbar(image, ax=axes, shrink=0.9, extend=extend, label=wrapped(words + grey))
    return image


def _write_numbers(axes: Any, image: Any) -> None:
    """The value in each cell, dark on light and light on dark; none where they would not fit."""
    values = np.ma.filled(image.get_array(), np.nan)
    box = axes.get_window_extent()
    room = min(box.width / values.shape[1] / LETTER, box.height / values.shape[0] / LINE) * 72 / axes.get_figure().dpi
    size = min(7.0, room)
    if size < SMALLEST_LETTERS:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
            axes.text(column, row, _brief(value), ha="center", va="center", color=ink, fontsize=size)


LEAST_DEVIATION = 1e-6
"""Smaller ones are drawn as this: rounding hides them."""

LETTER, LINE = 2.7, 1.4
"""The width of a number in a cell and the height of a line, in units of the letters' size."""

SMALLEST_LETTERS = 3.5
"""Points; smaller numbers are left out."""

MOST_LINES = 31
"""Between classes; more would cover what they separate."""

LONGEST_LINE = 26
"""Letters on one line beside an axis."""

LONGEST_NAME = 18
"""Letters; longer class names are cut."""


def _brief(value: float) -> str:
    """Two significant digits.

    >>> _brief(0.512), _brief(0.0512), _brief(5.12e-6), _brief(-12.3), _brief(0.0)
    ('0.51', '0.05', '5e-6', '-12', '0')
    """
    if value == 0 or abs(value) >= 0.01:
        return (
            f"{value:.0f}" if abs(value) >= 10 or value == 0 else f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}"
        )
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _shortened(name: Any) -> str:
    text = str(name)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def _fit_names(axes: Any) -> None:
    """Turn the names below a matrix where they would touch, and leave out names that would still touch their
    neighbours."""
    made = axes.get_figure(root=True)
    made.get_layout_engine().execute(made)
    names = [label for label in axes.get_xticklabels() if label.get_text()]
    height = LINE * mpl.rcParams["xtick.labelsize"] * made.dpi / 72
    if any(right.x0 < left.x1 + height / 2 for left, right in pairwise(name.get_window_extent() for name in names)):
        axes.tick_params(axis="x", labelrotation=90)
        made.get_layout_engine().execute(made)
    box = axes.get_window_extent()
    for side, length, count in (
        (axes.xaxis, box.width, np.ptp(axes.get_xlim())),
        (axes.yaxis, box.height, np.ptp(axes.get_ylim())),
    ):
        if side is axes.yaxis or (names and names[0].get_rotation() == 90):
            _thin_out(side, float(height / (length / count)))


def _thin_out(side: Any, apart: float) -> None:
    """Keep names that are at least so far apart, in units of the axis."""
    places, names = side.get_ticklocs(), [label.get_text() for label in side.get_ticklabels()]
    kept: list[int] = []
    for at, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= apart:
            kept.append(at)
    if any(names):
        side.set_ticks([places[at] for at in kept], labels=[names[at] for at in kept])


def _by_class(S: xr.DataArray, axis: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Order by class, where classes begin and end, and their names; as it is where there are none."""
    name = f"{axis}_class"
    if name not in S.coords:
        return np.arange(S.sizes[axis]), np.array([0, S.sizes[axis]]), []
    labels = S[name].values
    rows = [np.flatnonzero(labels == one) for one in in_natural_order(labels.tolist())]
    edges = np.cumsum([0, *map(len, rows)])
    return np.concatenate(rows), edges, [str(labels[some[0]]) for some in rows]
