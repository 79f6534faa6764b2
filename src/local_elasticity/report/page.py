"""A page of results: what the paper printed, what was measured, and the verdict, from result.json files alone.

`python -m local_elasticity.report.page docs/results/he2020local` reads every result.json below that folder and writes
docs/results/he2020local.md beside it. What no result.json holds is not on the page. The first paragraph of about.md,
the conclusions in five sentences, stands above the scoreboard.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from local_elasticity.report.paper import MARKS
from local_elasticity.report.scoreboard import opened, plain, power_of_agreement, scoreboard, sentence
from local_elasticity.report.words import effect, evidence, printed
from local_elasticity.store.atomic import write_whole

GRID_COLUMNS = 3
"""Cells are laid out as a table from so many columns on."""


def write_page(folder: Path) -> Path:
    """Make the page of a folder of runs; it lies beside the folder and has its name."""
    page = folder.with_name(f"{folder.name}.md")
    write_whole(page, results_page(folder).encode())
    return page


def results_page(folder: Path) -> str:
    """The page as Markdown: the title, the scoreboard, the introduction, the runs; links are relative to the folder's
    parent."""
    runs = _runs(folder)
    introduction = folder / "about.md"
    title, _, rest = (introduction.read_text() if introduction.exists() else f"# {folder.name}").partition("\n")
    five, _, rest = rest.strip().partition("\n\n")
    found = list(runs.values())
    sections = [title, five, "## Scoreboard", scoreboard(found), power_of_agreement(found), rest.strip()]
    sections += ["## The runs", *(_section(run, place.relative_to(folder.parent)) for place, run in runs.items())]
    return "\n\n".join(filter(None, sections)) + "\n"


def _runs(folder: Path) -> dict[Path, Any]:
    runs = {file.parent: json.loads(file.read_text()) for file in sorted(folder.rglob("result.json"))}
    if not runs:
        raise ValueError(f"folder: there is no result.json below {folder}")
    return runs


def _reading(run: Mapping[str, Any]) -> str:
    return str(run["reading"]).replace("_", " ")


def _section(run: Mapping[str, Any], place: Path) -> str:
    """A run: how it was made, its sentences, its figures, and its numbers below a line that opens."""
    title = f"### {Path(run['experiment']).name}, {_reading(run)}, {run['scale']} scale"
    parts = [title, _provenance(run), _claims(run["claims"])]
    parts += [f"![{Path(file).stem}]({quote(str(place / file))})" for file in run["figures"] if file.endswith(".png")]
    parts.append(opened(f"All {len(run['cells'])} numbers", _cells(run["cells"])))
    return "\n\n".join(part for part in parts if part)


def _provenance(run: Mapping[str, Any]) -> str:
    environments = run["environment"] if isinstance(run["environment"], list) else [run["environment"]]
    commits = run["commit"] if isinstance(run["commit"], list) else [run["commit"]]
    machines = " and ".join(f"{one['device']} (torch {one['torch']})" for one in environments)
    named = ", ".join(f"`{str(commit)[:10]}`" for commit in commits)
    return f"Seeds {_counted(run['seeds'])}; {machines}; commit {named}; {run['seconds']:.0f} s of measuring."


def _counted(seeds: Sequence[int]) -> str:
    """
    >>> _counted([0, 1, 2, 3, 4]), _counted([0, 2])
    ('0 to 4', '0, 2')
    """
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else ", ".join(map(str, seeds))


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """The sentences with their verdicts; the paper's own numbers where it prints them."""
    if not claims:
        return ""
    heads = ["sentence", "verdict", "paper", "measured (unadjusted 95 % interval)", "evidence"]
    rows = [
        [plain(sentence(claim)), f"**{claim['verdict']}**", printed(claim), effect(claim), plain(evidence(claim))]
        for claim in claims
    ]
    return _table(heads, rows, left_out=() if any(claim["paper"] for claim in claims) else ("paper",))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left_out: Sequence[str] = ()) -> str:
    """A Markdown table without the columns that are left out."""
    shown = [place for place, head in enumerate(heads) if head not in left_out]
    lines = [" | ".join(row[place] for place in shown) for row in (heads, *rows)]
    return "\n".join([f"| {lines[0]} |", "|---" * len(shown) + "|", *(f"| {line} |" for line in lines[1:])])


def _cells(cells: Sequence[Mapping[str, Any]]) -> str:
    """As a table like the paper's where there is a cell for every row and column, and else a line for each."""
    rows, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("row", "column"))
    if len(columns) >= GRID_COLUMNS and len(cells) == len(rows) * len(columns):
        return _grid(cells, rows, columns)
    return _lines(cells) if cells else ""


def _grid(cells: Sequence[Mapping[str, Any]], rows: Sequence[str], columns: Sequence[str]) -> str:
    at = {(cell["row"], cell["column"]): cell for cell in cells}
    head = [f"| | {' | '.join(map(plain, columns))} |", "|---" * (len(columns) + 1) + "|"]
    body = [f"| {plain(row)} | {' | '.join(_beside(at[row, column]) for column in columns)} |" for row in rows]
    legend = (
        f"Our mean, the range over seeds, and the paper's value: {MARKS['agrees']} agrees, {MARKS['differs']} differs."
    )
    return "\n".join([legend, "", *head, *body])


def _beside(cell: Mapping[str, Any]) -> str:
    """A cell with the paper's value below."""
    reason = f" ({plain(cell['reason'])})" if cell.get("reason") else ""
    values = _known(cell)
    spread = f"<br>{min(values):.3g} … {max(values):.3g}" if len(values) > 1 else ""
    ours = "not measured" if cell["mean"] is None else f"{cell['mean']:.3g}{spread}"
    mark = MARKS.get(cell["verdict"] or "", "")
    paper = "" if cell["paper"] is None else f"<br>paper {_number(cell['paper'])} {mark}".rstrip()
    return f"{ours}{reason}{paper}"


def _lines(cells: Sequence[Mapping[str, Any]]) -> str:
    """A line for each cell; the paper's value, the verdict and the interval over seeds where some cell has one."""
    interval = "unadjusted 95 % interval over seeds"
    heads = ["row", "column", "paper", "measured, mean ± sd", "range over seeds", interval, "verdict"]
    rows = [
        [
            plain(cell["row"]),
            plain(cell["column"]),
            _number(cell["paper"]),
            _measured(cell),
            _range(_known(cell)),
            _interval(cell),
            cell["verdict"] or "",
        ]
        for cell in cells
    ]
    left_out = [] if any("interval" in cell for cell in cells) else [interval]
    left_out += [] if any(cell["paper"] is not None for cell in cells) else ["paper", "verdict"]
    return _table(heads, rows, left_out)


def _interval(cell: Mapping[str, Any]) -> str:
    """The mean on the cell's own scale with its interval."""
    if "interval" not in cell:
        return ""
    low, middle, high = map(_number, cell["interval"])
    return f"{middle} ({low} … {high})"


def _measured(cell: Mapping[str, Any]) -> str:
    reason = f" ({plain(cell['reason'])})" if cell.get("reason") else ""
    if cell["mean"] is None:
        return f"not measured{reason}"
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:.2g}"
    return f"{_number(cell['mean'])}{spread}{reason}"


def _range(values: Sequence[float]) -> str:
    return f"{_number(min(values))} … {_number(max(values))}" if len(values) > 1 else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _known(cell: Mapping[str, Any]) -> list[float]:
    return [value for value in cell["values"] if value is not None]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        write_page(path)
