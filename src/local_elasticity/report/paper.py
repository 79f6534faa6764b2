"""The result of a paper's experiment as the page shows it: claims, numbers, verdicts and figures."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from local_elasticity.report.scoreboard import sentence
from local_elasticity.report.words import effect, evidence, printed
from local_elasticity.words import number

SCHEMA = 2
MARKS = {
    "agrees": "✓",
    "supported": "✓",
    "differs": "≠",
    "contradicted": "✗",
    "undecided": "?",
    "not measured": "–",
}
"""A verdict is shown by a sign and a word, not by colour alone."""

LARGEST_FIGURE = 2**20
"""Bytes of a figure beyond which it is left out."""


@dataclass(frozen=True)
class Figure:
    """A picture as a data URI, what it is called, and what its caption says."""

    name: str
    picture: str
    caption: str

    @property
    def numbers(self) -> set[str]:
        """Those of the paper's figures that it redraws: {"12", "13"} for fig12_13."""
        return set(re.findall(r"\d+", self.name)) if re.match(r"figs?[\s\d]", self.name, re.IGNORECASE) else set()


@dataclass(frozen=True)
class Paper:
    """One result.json: rows as they are printed."""

    name: str
    title: str
    provenance: Mapping[str, str]
    claims: Sequence[Mapping[str, Any]]
    cells: Sequence[Mapping[str, str]]
    figures: Sequence[Figure]
    notes: Sequence[str]

    def tally(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """How many rows have each verdict."""
        given = [row["verdict"] for row in rows if row["verdict"]]
        return ", ".join(f"{given.count(verdict)} {verdict}" for verdict in MARKS if verdict in given)


def read_paper(folder: Path) -> Paper:
    """What lies in a folder with a result.json; a file that is none raises a ValueError that says why."""
    file = folder / "result.json"
    try:
        result = json.loads(file.read_text())
        if result["schema"] != SCHEMA:
            raise ValueError(
                f"expected schema {SCHEMA}, got {result['schema']}; judge it again with "
                f"`python -m local_elasticity.papers.judge_again {folder}`"
            )
        title = f"{result['experiment']}, {result['reading'].replace('_', ' ')}, {result['scale']} scale"
        figures, missing = _figures(folder, result["figures"], f"{title}, {_seeds(len(result['seeds']))}")
        return Paper(
            folder.name,
            title,
            _provenance(result),
            [_claim(one, figures) for one in result["claims"]],
            [_cell(one) for one in result["cells"]],
            figures,
            [*_small(result["scale"]), *missing],
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a result: {type(error).__name__} {error}") from error


def _provenance(result: Mapping[str, Any]) -> dict[str, str]:
    return {
        "experiment": str(result["experiment"]),
        "scale": str(result["scale"]),
        "reading": str(result["reading"]),
        "seeds": ", ".join(map(str, result["seeds"])),
        "machine": "; ".join(f"{one['device']}, torch {one['torch']}" for one in _every(result["environment"])),
        "commit": ", ".join(str(one)[:10] for one in _every(result["commit"])),
        "seconds": number(result["seconds"]),
        "settings": json.dumps(result.get("settings", {}), ensure_ascii=False)[:2000],
        "command": f"local-elasticity run {result['experiment']} --scale {result['scale']} "
        f"--reading {result['reading']} --seeds {len(result['seeds'])}",
    }


def _every(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _small(scale: str) -> list[str]:
    return [] if scale == "paper" else [f"{scale} scale: this shows that it runs; verdicts count at paper scale"]


def _claim(claim: Mapping[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """A claim, with the places of the figures that it names, or of the only one that there is."""
    text = sentence(claim)
    cited = " ".join(re.findall(r"Figs?\.? ([\d, and]+)", text))
    named = set(re.findall(r"\d+", cited))
    shown = [place for place, figure in enumerate(figures, 1) if figure.numbers & named or len(figures) == 1]
    verdict = str(claim["verdict"])
    return {
        "text": text,
        "verdict": verdict,
        "mark": MARKS.get(verdict, ""),
        "figures": shown,
        "paper": printed(claim),
        "measured": effect(claim),
        "evidence": evidence(claim),
    }


def _cell(cell: Mapping[str, Any]) -> dict[str, str]:
    verdict = cell["verdict"] or ""
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:.2g}"
    reason = f" ({cell['reason']})" if cell.get("reason") else ""
    values = [value for value in cell["values"] if value is not None]
    return {
        "row": str(cell["row"]),
        "column": str(cell["column"]),
        "paper": number(cell["paper"]),
        "measured": ("not measured" if cell["mean"] is None else number(cell["mean"]) + spread) + reason,
        "range": f"{number(min(values))} … {number(max(values))}" if len(values) > 1 else "",
        "verdict": str(verdict),
        "mark": MARKS.get(str(verdict), ""),
    }


def _figures(folder: Path, names: Sequence[str], made: str) -> tuple[list[Figure], list[str]]:
    """PNG files inside the folder; what cannot be shown is noted."""
    figures: list[Figure] = []
    notes = []
    for name in names:
        file = (folder / name).resolve()
        if not name.endswith(".png"):
            continue
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            notes.append(f"the figure {name} is missing")
        elif file.stat().st_size > LARGEST_FIGURE:
            notes.append(f"the figure {name} is too large to be shown ({file.stat().st_size / 2**20:.1f} MB)")
        else:
            data = base64.b64encode(file.read_bytes()).decode()
            figure = Figure(Path(name).stem.replace("_", " "), f"data:image/png;base64,{data}", "")
            redrawn = " and ".join(sorted(figure.numbers, key=int))
            what = f"Measured again, after the paper's Fig. {redrawn}" if redrawn else figure.name.capitalize()
            figures.append(replace(figure, caption=f"{what}: {made}."))
    return figures, notes
