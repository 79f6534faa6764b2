"""The explorable page: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import local_elasticity
from local_elasticity.extras import extra
from local_elasticity.report.diagnostics import Finding, examine
from local_elasticity.report.distance import scatter
from local_elasticity.report.embedding import Matched, matched, principal_places
from local_elasticity.report.pairs import Pairs, pairs_of
from local_elasticity.report.paper import Paper
from local_elasticity.report.payload import Pack, as_json, packed, run_payload
from local_elasticity.report.run import (
    EXACT_NUMBERS,
    Panel,
    Run,
    Side,
    Unshown,
    as_text,
    in_range,
    named,
    sampled,
    shown,
    side_for,
)
from local_elasticity.report.summary import tell, tell_clusters, tell_missing
from local_elasticity.statistics.change_point import FEWEST, half_life

SCRIPTS = ("reading.js", "matrix.js", "charts.js", "choice.js", "views.js", "page.js")
"""Our own JavaScript, in the order in which it is put together."""


LARGEST_VALUE = 2000
"""Characters of a single value in the provenance."""


@dataclass(frozen=True)
class Section:
    """What the page says about one run."""

    name: str
    kind: str
    panels: Sequence[tuple[str, Sequence[str], Sequence[Finding]]]
    provenance: Mapping[str, str]
    notes: Sequence[str]


def page(
    runs: Sequence[Run | Paper | Unshown],
    *,
    title: str,
    command: str = "",
    about: Mapping[str, Any] | None = None,
) -> str:
    """The whole page as text.

    The content security policy allows two scripts, by their hashes, and nothing else: no request can leave the page.
    """
    measured = [run for run in runs if isinstance(run, Run) and run.panels]
    side = side_for(sum(len(run.panels) for run in measured))
    pack, sections, payloads = Pack(), [], []
    for whole in measured:
        section, payload = _explored(named(in_range(sampled(whole, side))), pack, EXACT_NUMBERS // len(measured))
        sections.append(section)
        payloads.append(payload)
    plotly = _plotly() if measured else ""
    own = "\n".join(_asset(name) for name in SCRIPTS) if measured else ""
    return as_text(
        _environment()
        .get_template("page.html.j2")
        .render(
            title=shown(title),
            command=command,
            about=_lines(about or {}),
            version=local_elasticity.__version__,
            sections=sections,
            papers=[one for one in runs if isinstance(one, Paper)],
            unshown=[one for one in runs if isinstance(one, Unshown)],
            style=_asset("page.css"),
            script=own,
            plotly=packed(plotly.encode()) if plotly else "",
            policy=_policy([own, plotly]),
            payload=packed(as_json({"runs": payloads})) if measured else "",
            blocks=pack.blocks,
        )
    )


def _explored(run: Run, pack: Pack, exact: int) -> tuple[Section, dict[str, Any]]:
    pairs = [pairs_of(run, panel) for panel in run.panels]
    places = [principal_places(panel.values[-1]) if run.square else None for panel in run.panels]
    match = _match(run.sources)
    payload = run_payload(run, pack, exact, pairs=pairs, places=places, match=match, apart=scatter(run))
    told = [
        (shown(panel.measure), _told(run, panel, pair, match), examine(run, panel))
        for panel, pair in zip(run.panels, pairs, strict=True)
    ]
    return Section(shown(run.name), run.kind, told, _provenance(run), [*run.notes, *tell_missing(run)]), payload


def _match(side: Side) -> Matched | None:
    if side.clusters is None or side.classes is None:
        return None
    return matched(list(side.clusters), list(side.classes))


def _told(run: Run, panel: Panel, pairs: Pairs | None, match: Matched | None) -> list[str]:
    half = half_life(panel.steps, pairs.ratio) if pairs is not None and len(panel.steps) >= FEWEST else None
    sentences = tell(run, panel, pairs, half)
    return [*sentences, *tell_clusters(run.sources, match)]


def _provenance(run: Run) -> dict[str, str]:
    """Everything that the run knows of itself, a line each."""
    shape = run.panels[0].values.shape if run.panels else (0, 0, 0)
    times = f", {shape[0]} times" if shape[0] > 1 else ""
    return _lines(run.about) | {"shown": f"{shape[1]} sources, {shape[2]} targets{times}"}


def _lines(about: Mapping[str, Any]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, value in about.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {one}" for key, one in value.items())
        elif isinstance(value, (list, tuple)):
            value = "; ".join(map(str, value))
        if str(value) not in ("", "None"):
            lines[shown(name).replace("_", " ")] = str(value)[:LARGEST_VALUE]
    return lines


def _environment() -> Any:
    """Every value is escaped; a name that is not given is an error."""
    with extra("report"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _asset(name: str) -> str:
    return files("local_elasticity.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    with extra("report"):
        from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
