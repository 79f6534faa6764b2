"""Helpers and harmers of targets as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from local_elasticity.report.figures import COLOURS, ONE_COLUMN, STYLE, figure, width_of
from local_elasticity.report.run import shown
from local_elasticity.words import number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_TARGETS = 12
"""Targets that are drawn; a figure of more would not fit on a sheet of paper."""

BAR, AROUND = 0.17, 0.45
"""Inches for each bar, and for the title and the numbers of each target."""

LONGEST = 20
"""Characters of a name beside a bar."""

SMALL_LETTERS = 6
"""Points, of the numbers beside the bars."""


def influence_figure(frame: pd.DataFrame, columns: int = 1) -> Figure:
    """The rows of `Influences.frame()` as bars, a panel for each of the first targets: the strongest helper first, then
    the harmers, the strongest first. Columns `source_file` and `target_file` give names, where they are there.

    Args:
        frame: with `target`, `source`, `value`, `effect`, and `source_class` where classes are known.
        columns: 1 or 2, the width in columns of print; of two, targets stand side by side.

    Returns:
        A matplotlib figure.
    """
    width = width_of(columns)
    targets = list(dict.fromkeys(frame["target"]))
    drawn = [frame[frame["target"] == target] for target in targets[:MOST_TARGETS]]
    beside = min(columns, max(1, len(drawn)))
    lines = [drawn[at : at + beside] for at in range(0, len(drawn), beside)] or [[]]
    heights = [AROUND + BAR * max((len(rows) for rows in line), default=1) for line in lines]
    with mpl.rc_context(STYLE):
        made = figure(width if beside == columns else ONE_COLUMN, sum(heights) + 0.4)
        panels = made.subplots(len(lines), beside, squeeze=False, height_ratios=heights)
        for axes in panels.ravel()[len(drawn) :]:
            axes.set_axis_off()
        for axes, rows in zip(panels.ravel(), drawn, strict=False):
            _draw_bars(axes, rows)
        words = ["change of the target's loss by the step"]
        words += ["each target has its own scale"] * (len(drawn) > 1)
        words += [f"{len(drawn)} of {len(targets)} targets"] * (len(targets) > len(drawn))
        made.supxlabel("\n".join(words), fontsize=STYLE["axes.labelsize"])
        if drawn:
            made.legend(*_legend(), loc="outside upper center", ncols=2)
    return made


def _draw_bars(axes: Any, rows: pd.DataFrame) -> None:
    """One target: its name, and a bar for each example that helps or harms it, from top to bottom."""
    places = np.arange(len(rows))
    colours = [COLOURS[0] if effect == "helps" else COLOURS[1] for effect in rows["effect"]]
    values = rows["value"].to_numpy(float)
    axes.barh(places, values, color=colours, height=0.7)
    for place, value in zip(places, values, strict=True):
        where = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": SMALL_LETTERS}
        axes.text(1.02, place, number(float(value)), **where)
    axes.axvline(0, color="0.4", linewidth=0.6)
    axes.set_yticks(places, labels=[_name(row, "source") for row in rows.to_dict("records")])
    axes.invert_yaxis()
    axes.margins(y=0.02)
    axes.set_xticks([0])
    title = _name(rows.to_dict("records")[0], "target")
    axes.set_title(f"target {title}", loc="right")


def _name(row: Mapping[Any, Any], side: str) -> str:
    """A file or a position, and the class where it is known; nothing in it is read as mathematics.

    >>> _name({"source": 3, "source_class": 1}, "source"), _name({"target": 3, "target_file": "$a$.png"}, "target")
    ('3 (class 1)', '\\\\$a\\\\$.png')
    """
    text = _last(row.get(f"{side}_file", row[side]))
    kind = row.get(f"{side}_class")
    text = text if kind is None else f"{text} (class {_last(kind)})"
    return text.replace("$", r"\$")


def _last(name: Any) -> str:
    """The end of a long name, which tells files apart."""
    text = shown(name)
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.patches import Patch

    return [Patch(color=colour) for colour in COLOURS[:2]], ["helps: the loss falls", "harms: the loss rises"]
