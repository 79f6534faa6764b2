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
from local_elasticity.report.confused import Confused, confused
from local_elasticity.report.diagnostics import Finding, examine
from local_elasticity.report.embedding import Matched, matched
from local_elasticity.report.foreseen import Foreseen
from local_elasticity.report.front import Front, fronts_of
from local_elasticity.report.listed import with_listed
from local_elasticity.report.pairs import pairs_of
from local_elasticity.report.paper import Paper
from local_elasticity.report.payload import Pack, as_json, packed, run_payload
from local_elasticity.report.run import (
    EXACT_NUMBERS,
    LARGEST_SIDE,
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
from local_elasticity.report.summary import tell, tell_clusters, tell_content, tell_missing
from local_elasticity.report.tabled import Tabled
from local_elasticity.words import number

SCRIPTS = (
    "reading.js",
    "colours.js",
    "matrix.js",
    "charts.js",
    "choice.js",
    "front.js",
    "tokens.js",
    "views.js",
    "compare.js",
    "tools.js",
    "page.js",
)
"""Our own JavaScript, in the order in which it is put together."""


LARGEST_VALUE = 2000
"""Characters of a single value in the provenance."""

ROUNDED = frozenset({"nonlinearity", "unresolved", "approximation_error"})
"""Values of the provenance that nothing is repeated with: three digits are enough."""


CHECKSUM = "checksum of the inputs (norm; ordered sum)"
"""What the numbers are called by which the inputs of two results can be told apart."""


@dataclass(frozen=True)
class PanelText:
    """What the page says about one measure of a run; `checks` counts the findings of each level."""

    title: str
    front: Front
    sentences: Sequence[str]
    findings: Sequence[Finding]

    @property
    def checks(self) -> str:
        named = {
            "bad": ("failed", "failed"),
            "careful": ("needs care", "need care"),
            "good": ("passed", "passed"),
            "unknown": ("not known", "not known"),
        }
        counts = {level: sum(one.level == level for one in self.findings) for level in named}
        return ", ".join(f"{count} {named[level][count > 1]}" for level, count in counts.items() if count)

    @property
    def level(self) -> str:
        """The worst level of a finding."""
        there = {one.level for one in self.findings}
        return next(level for level in ("bad", "careful", "good", "unknown") if level in there)


@dataclass(frozen=True)
class Section:
    """What the page says about one run."""

    name: str
    kind: str
    panels: Sequence[PanelText]
    provenance: Mapping[str, str]
    notes: Sequence[str]
    content: str
    confused: Confused | None = None


def page(
    runs: Sequence[Run | Paper | Foreseen | Tabled | Unshown],
    *,
    title: str,
    command: str = "",
    about: Mapping[str, Any] | None = None,
    left_out: bool = False,
) -> str:
    """The whole page as text; `left_out` says that examples were not wanted.

    The content security policy allows two scripts, by their hashes, and nothing else: no request can leave the page.
    """
    measured = [run for run in runs if isinstance(run, Run) and run.panels]
    side = side_for(sum(min(2, len(panel.values)) for run in measured for panel in run.panels))
    pack, sections, payloads = Pack(), [], []
    for whole in measured:
        run = named(in_range(sampled(with_listed(whole), side, longest=LARGEST_SIDE)))
        section, payload = _explored(run, pack, EXACT_NUMBERS // len(measured), left_out=left_out)
        sections.append(section)
        payloads.append(payload)
    foreseen = [one for one in runs if isinstance(one, Foreseen)]
    tables = [one for one in runs if isinstance(one, Tabled)]
    shown_parts: list[Section | Foreseen | Tabled] = [*sections, *foreseen, *tables]
    contents = [(one.name, one.content) for one in shown_parts]
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
            forecasts=foreseen,
            tables=tables,
            unshown=[one for one in runs if isinstance(one, Unshown)],
            contents=[f"{name}: {content}" for name, content in contents],
            style=_asset("page.css"),
            script=own,
            plotly=packed(plotly.encode()) if plotly else "",
            policy=_policy([own, plotly]),
            payload=packed(as_json({"runs": payloads})) if measured else "",
            blocks=pack.blocks,
        )
    )


def _explored(run: Run, pack: Pack, exact: int, *, left_out: bool) -> tuple[Section, dict[str, Any]]:
    pairs = [pairs_of(run, panel) for panel in run.panels]
    fronts = fronts_of(run, pairs)
    match = _match(run.sources)
    payload = run_payload(run, pack, exact, pairs=pairs, fronts=fronts, match=match)
    told = [
        PanelText(
            shown(panel.title or panel.measure),
            front,
            [*tell(run, panel, front), *tell_clusters(run.sources, match)],
            examine(run, panel),
        )
        for panel, front in zip(run.panels, fronts, strict=True)
    ]
    notes = [*run.notes, *tell_missing(run, left_out=left_out)]
    content = tell_content(run)
    return Section(shown(run.name), run.kind, told, _provenance(run), notes, content, confused(run, pairs)), payload


def _match(side: Side) -> Matched | None:
    if side.clusters is None or side.classes is None:
        return None
    return matched(list(side.clusters), list(side.classes))


def _provenance(run: Run) -> dict[str, str]:
    """Everything that the run knows of itself, a line each."""
    shape = run.panels[0].values.shape if run.panels else (0, 0, 0)
    times = f", {shape[0]} times" if shape[0] > 1 else ""
    return _lines(run.about) | {"shown": f"{shape[1]} sources, {shape[2]} targets{times}"}


def _lines(about: Mapping[str, Any]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, value in about.items():
        if name == "inputs" and isinstance(value, (list, tuple)) and all(isinstance(one, float) for one in value):
            name, value = CHECKSUM, [f"{one:.6g}" for one in value]
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {one}" for key, one in value.items())
        elif isinstance(value, (list, tuple)):
            value = "; ".join(map(str, value))
        elif name in ROUNDED and isinstance(value, float):
            value = number(value)
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

    return get_plotlyjs()


def _policy(scripts: Sequence[str]) -> str:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
