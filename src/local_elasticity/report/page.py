"""A page of results: what the paper printed, what was measured, and the verdict, from result.json files alone.

`python -m local_elasticity.report.page docs/results/he2020local` reads every result.json below that folder and writes
docs/results/he2020local.md beside it. What no result.json holds is not on the page. A file instead of a folder,
README.md say, gets its tables of claims renewed, between `<!-- claims: FOLDER -->` and `<!-- end of claims -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from local_elasticity.report.paper import MARKS
from local_elasticity.report.words import effect, number
from local_elasticity.store.atomic import write_whole

GRID_COLUMNS = 3
"""Cells are laid out as a table from so many columns on."""


def write_page(folder: Path) -> Path:
    """Make the page of a folder of runs; it lies beside the folder and has its name."""
    page = folder.with_name(f"{folder.name}.md")
    write_whole(page, results_page(folder).encode())
    return page


def results_page(folder: Path) -> str:
    """The page as Markdown; links are relative to the folder's parent."""
    runs = _runs(folder)
    introduction = folder / "about.md"
    sections = [introduction.read_text().strip() if introduction.exists() else f"# {folder.name}"]
    sections += [_section(run, place.relative_to(folder.parent)) for place, run in runs.items()]
    return "\n\n".join(sections) + "\n"


def with_claims(file: Path) -> str:
    """A Markdown file with the tables of claims that it asks for, one line a claim; folders are relative to it."""

    def renewed(match: re.Match[str]) -> str:
        runs = list(_runs(file.parent / match[2]).values())
        readings = sorted({run["reading"] for run in runs})
        rows = [
            f"| {_plain(text)} | {' | '.join(found.get(one, '') for one in readings)} | {name} |"
            for (name, text), found in _verdicts(runs).items()
        ]
        head = f"| claim | {' | '.join(one.replace('_', ' ') for one in readings)} | run |"
        return "\n".join([match[1], head, "|---" * (len(readings) + 2) + "|", *rows, match[3]])

    marked = r"(<!-- claims: (\S+) -->)\n.*?(<!-- end of claims -->)"
    return re.sub(marked, renewed, file.read_text(), flags=re.DOTALL)


def _verdicts(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, str]]:
    """(experiment, claim) → reading → verdict."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for run in runs:
        for claim in run["claims"]:
            line = found.setdefault((Path(run["experiment"]).name, claim["text"]), {})
            line[run["reading"]] = f"**{claim['verdict']}**"
    return found


def _runs(folder: Path) -> dict[Path, Any]:
    runs = {file.parent: json.loads(file.read_text()) for file in sorted(folder.rglob("result.json"))}
    if not runs:
        raise ValueError(f"folder: there is no result.json below {folder}")
    return runs


def _reading(run: Mapping[str, Any]) -> str:
    return str(run["reading"]).replace("_", " ")


def _section(run: Mapping[str, Any], place: Path) -> str:
    title = f"## {run['experiment']}, {_reading(run)}, {run['scale']} scale"
    parts = [title, _provenance(run), _claims(run["claims"]), _cells(run["cells"])]
    parts += [f"![{Path(file).stem}]({quote(str(place / file))})" for file in run["figures"] if file.endswith(".png")]
    return "\n\n".join(part for part in parts if part)


def _provenance(run: Mapping[str, Any]) -> str:
    environments = run["environment"] if isinstance(run["environment"], list) else [run["environment"]]
    commits = run["commit"] if isinstance(run["commit"], list) else [run["commit"]]
    machines = " and ".join(f"{one['device']} (torch {one['torch']})" for one in environments)
    named = ", ".join(f"`{str(commit)[:10]}`" for commit in commits)
    return (
        f"Seeds {', '.join(map(str, run['seeds']))}; {machines}; commit {named}; {run['seconds']:.0f} s of measuring."
    )


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    rows = [
        f"| {_plain(claim['text'])} | **{claim['verdict']}** | {number(claim.get('paper'))} "
        f"| {effect(claim)} | {_plain(claim['evidence'])} |"
        for claim in claims
    ]
    return "\n".join(["| claim | verdict | paper | measured (range) | evidence |", "|---|---|---|---|---|", *rows])


def _cells(cells: Sequence[Mapping[str, Any]]) -> str:
    """As a table like the paper's where there is a cell for every row and column, and else a line for each."""
    rows, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("row", "column"))
    if len(columns) >= GRID_COLUMNS and len(cells) == len(rows) * len(columns):
        return _grid(cells, rows, columns)
    return _lines(cells) if cells else ""


def _grid(cells: Sequence[Mapping[str, Any]], rows: Sequence[str], columns: Sequence[str]) -> str:
    at = {(cell["row"], cell["column"]): cell for cell in cells}
    head = [f"| | {' | '.join(map(_plain, columns))} |", "|---" * (len(columns) + 1) + "|"]
    body = [f"| {_plain(row)} | {' | '.join(_beside(at[row, column]) for column in columns)} |" for row in rows]
    legend = (
        f"Our mean, the range over seeds, and the paper's value: {MARKS['agrees']} agrees, {MARKS['differs']} differs."
    )
    return "\n".join([legend, "", *head, *body])


def _beside(cell: Mapping[str, Any]) -> str:
    """A cell with the paper's value below."""
    reason = f" ({_plain(cell['reason'])})" if cell.get("reason") else ""
    values = cell["values"]
    spread = f"<br>{min(values):.3g} … {max(values):.3g}" if len(values) > 1 else ""
    ours = "not measured" if cell["mean"] is None else f"{cell['mean']:.3g}{spread}"
    mark = MARKS.get(cell["verdict"] or "", "")
    paper = "" if cell["paper"] is None else f"<br>paper {_number(cell['paper'])} {mark}".rstrip()
    return f"{ours}{reason}{paper}"


def _lines(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"| {_plain(cell['row'])} | {_plain(cell['column'])} | {_number(cell['paper'])} | {_measured(cell)} "
        f"| {_range(cell['values'])} | {cell['verdict'] or ''} |"
        for cell in cells
    ]
    head = ["| row | column | paper | measured, mean ± sd | range over seeds | verdict |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _measured(cell: Mapping[str, Any]) -> str:
    reason = f" ({_plain(cell['reason'])})" if cell.get("reason") else ""
    if cell["mean"] is None:
        return f"not measured{reason}"
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:.2g}"
    return f"{_number(cell['mean'])}{spread}{reason}"


def _range(values: Sequence[float]) -> str:
    return f"{_number(min(values))} … {_number(max(values))}" if len(values) > 1 else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _plain(text: str) -> str:
    """As it stands in a table: bars would end the cell, and tags would be read as HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        if path.is_dir():
            write_page(path)
        else:
            write_whole(path, with_claims(path).encode())
