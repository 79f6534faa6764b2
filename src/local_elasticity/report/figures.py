"""Figures for print: one style, colour-blind-safe, saved as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from local_elasticity.measures.registry import is_ratio
from local_elasticity.store.atomic import write_whole

if TYPE_CHECKING:
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
        draw_similarity(made.subplots(), S, str(S.attrs.get("measure", "similarity")))
    return made


def comparison_figure(before: xr.DataArray, after: xr.DataArray, difference: xr.DataArray, columns: int = 2) -> Figure:
    """Two matrices and their difference side by side."""
    width = width_of(columns)
    with mpl.rc_context(STYLE):
        made = figure(width, 0.36 * width)
        panels = zip(made.subplots(1, 3), (before, after, difference), ("before", "after", "difference"), strict=True)
        for axes, S, title in panels:
            draw_similarity(axes, S, title)
    return made


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
        axes.legend()
    return made


def draw_similarity(axes: Any, S: xr.DataArray, title: str) -> None:
    """The matrix on given axes, with its colour bar. Where 1 is the source itself, what is beyond it is drawn as 1."""
    rows, row_edges, row_names = _by_class(S, "source")
    columns, column_edges, column_names = _by_class(S, "target")
    values = S.values[np.ix_(rows, columns)]
    resolved = values[np.isfinite(values)]
    signed = bool(resolved.size and resolved.min() < 0)
    top = float(np.quantile(np.abs(resolved), 0.98)) if resolved.size else 1.0
    if is_ratio(S.attrs.get("measure")):
        top = min(top, 1.0)
    colours = mpl.colormaps["RdBu_r" if signed else "viridis"].with_extremes(bad="0.7")
    image = axes.imshow(values, cmap=colours, vmin=-top if signed else 0, vmax=top, aspect="auto")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend="max")
    for edge in row_edges[1:-1]:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
    for edge in column_edges[1:-1]:
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    _name_ticks(axes.set_yticks, row_edges, row_names)
    _name_ticks(axes.set_xticks, column_edges, column_names)
    axes.set(title=title, xlabel="target x′", ylabel="source x")


def _by_class(S: xr.DataArray, axis: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Order by class, where classes begin and end, and their names; as it is where there are none."""
    name = f"{axis}_class"
    if name not in S.coords:
        return np.arange(S.sizes[axis]), np.array([0, S.sizes[axis]]), []
    labels = S[name].values
    names, counts = np.unique(labels, return_counts=True)
    return np.argsort(labels, kind="stable"), np.concatenate([[0], np.cumsum(counts)]), [str(n) for n in names]


def _name_ticks(set_ticks: Any, edges: np.ndarray, names: Sequence[str]) -> None:
    if names:
        set_ticks((edges[:-1] + edges[1:]) / 2 - 0.5, labels=names)
