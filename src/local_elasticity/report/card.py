"""Small cards for notebooks: a picture, a table and what to know before believing them; everything is escaped."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from local_elasticity.measures.registry import words_of
from local_elasticity.report.diagnostics import examine
from local_elasticity.report.pairs import Pairs, pairs_of
from local_elasticity.report.run import Panel, Run, Side, as_text, in_range, named, sampled, shown
from local_elasticity.statistics.class_pairs import carried
from local_elasticity.words import number

if TYPE_CHECKING:
    import xarray as xr

MOST_CLASSES = 10
"""With more classes the table is left out."""

PICTURE_SIDE = 200
"""Examples a side in the picture."""

STYLE = """<style>
.le-card { font: 13px/1.4 system-ui, sans-serif; border: 1px solid #8886; border-radius: 8px; padding: 10px 14px;
  max-width: 900px; font-variant-numeric: tabular-nums; }
.le-card h4 { margin: 0 0 6px; font-size: 14px; }
.le-card .panel { display: flex; flex-wrap: wrap; gap: 8px 18px; align-items: flex-start; margin-top: 8px; }
.le-card .panel p { flex-basis: 100%; margin: 0; }
.le-card img { width: 200px; image-rendering: pixelated; }
.le-card table { border-collapse: collapse; font-size: 12px; margin: 0; }
.le-card th, .le-card td { border: 0; padding: 2px 7px; text-align: right; background: none; }
.le-card thead th { border-bottom: 1px solid #8886; }
.le-card small { flex-basis: 100%; opacity: 0.75; }
</style>"""


@dataclass(frozen=True)
class Card:
    """A piece of HTML that notebooks show."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def similarity_card(S: xr.DataArray) -> Card:
    """The card of one labelled similarity."""
    classes = [carried(S, name) for name in ("source_class", "target_class")]
    own, floor = carried(S, "source_change"), carried(S, "source_floor")
    measure, words = str(S.attrs.get("measure", "similarity")), str(S.attrs.get("words", ""))
    panel = Panel(measure, np.asarray(S.values)[None], (), own, floor, words)
    sides = [Side(np.arange(size), labels) for size, labels in zip(S.shape, classes, strict=True)]
    square = bool(S.attrs.get("targets_are_sources"))
    return run_card(Run("similarity", "similarity", (panel,), sides[0], sides[1], square))


def history_card(history: Any) -> Card:
    """The card of a monitor's history, at its last probe."""
    sides = [
        Side(np.arange(len(labels)), np.array(labels)) for labels in (history.source_classes, history.target_classes)
    ]
    last = history[-1] if len(history) else None
    steps = tuple(history.steps)
    panels = (
        ()
        if last is None
        else tuple(
            Panel(name, S[None], steps, *last.denominators.get(name, (None, None)))
            for name, S in last.similarity.items()
        )
    )
    return run_card(Run("history", "history", panels, sides[0], sides[1], history.square))


def run_card(run: Run) -> Card:
    """The card of a run, at its last time."""
    from markupsafe import Markup, escape

    run, parts = named(in_range(run)), []
    for panel in run.panels:
        pairs = pairs_of(run, panel)
        findings = "; ".join(finding.title for finding in examine(run, panel) if finding.level != "unknown")
        steps = f", {len(panel.steps)} probes up to step {panel.steps[-1]}" if panel.steps else ""
        parts.append(
            Markup('<div class="panel"><p><b>{}</b>: {}{}</p>{}{}<small>{}</small></div>').format(
                shown(panel.measure),
                panel.words or words_of(panel.measure),
                steps,
                Markup('<img alt="similarity matrix; rows are sources, columns targets" width="200" src="{}">').format(
                    _picture(run, panel)
                ),
                _table(pairs) if pairs is not None else "",
                findings,
            )
        )
    n, m = len(run.sources), len(run.targets)
    head = Markup("<h4>Local elasticity: {} sources × {} targets{}</h4>").format(
        n, m, "" if parts else ", no probe yet"
    )
    inside = head + Markup("").join(escape(part) for part in parts)
    return Card(as_text(Markup(STYLE) + Markup('<div class="le-card">{}</div>').format(inside)))


def _table(pairs: Pairs) -> Any:
    """Medians of class pairs; rows are source classes."""
    from markupsafe import Markup

    if len(pairs.classes) > MOST_CLASSES:
        return ""
    cell = Markup("<td>{}</td>")
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in pairs.classes)
    rows = [
        Markup("<tr><th>{}</th>{}</tr>").format(name, Markup("").join(cell.format(number(float(v))) for v in row))
        for name, row in zip(pairs.classes, pairs.median[-1], strict=True)
    ]
    return Markup("<table><thead><tr><th>source \\ target</th>{}</tr></thead><tbody>{}</tbody></table>").format(
        head, Markup("").join(rows)
    )


def _picture(run: Run, panel: Panel) -> str:
    """The matrix as a PNG, ordered by class, a dot for each pair of at most PICTURE_SIDE examples."""
    import matplotlib as mpl
    from PIL import Image

    from local_elasticity.report.payload import by_class, colour_range

    small = sampled(run, PICTURE_SIDE)
    at = run.panels.index(panel)
    values = small.panels[at].values[-1][np.ix_(by_class(small.sources), by_class(small.targets))]
    low, high = colour_range(panel)
    colours = mpl.colormaps["RdBu_r" if low < 0 else "viridis"].with_extremes(bad="0.6")
    dots = colours(np.clip((np.ma.masked_invalid(values) - low) / (high - low), 0, 1), bytes=True)[..., :3]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(dots)).quantize(64).save(file, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
