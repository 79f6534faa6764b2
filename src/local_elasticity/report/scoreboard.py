"""What a paper's results say together: how many sentences have each verdict, and how much agreeing cells mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local_elasticity.statistics.verdicts import inside_range_expected

Run = Mapping[str, Any]
VERDICTS = ("supported", "contradicted", "undecided", "not measured")
JUDGED = ("agrees", "differs")
"""Cells with enough seeds for a verdict; the others do not count as measured."""

CHANCE = 50.0
"""Accuracy of a guess between two classes, in percent."""


def scoreboard(runs: Sequence[Run]) -> str:
    """How many sentences have each verdict, and every sentence with its verdict by reading, as Markdown tables."""
    readings = sorted({str(run["reading"]) for run in runs})
    lines = [f"| sentences | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 1) + "|"]
    for ours, whose in ((False, "of the paper"), (True, "our own: variants and controls")):
        for reading in readings:
            given = [
                claim["verdict"]
                for run in runs
                if run["reading"] == reading
                for claim in run["claims"]
                if claim["ours"] == ours
            ]
            counts = " | ".join(str(given.count(verdict)) for verdict in VERDICTS)
            lines.append(f"| {whose}, {_words(reading)} | {counts} |")
    return "\n".join([*lines, "", *_every_sentence(runs, readings)])


def _every_sentence(runs: Sequence[Run], readings: Sequence[str]) -> list[str]:
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for run in runs:
        for claim in run["claims"]:
            key = _run_name(run), sentence(claim), claim["id"]
            found.setdefault(key, {})[run["reading"]] = claim["verdict"]
    head = f"| sentence | {' | '.join(map(_words, readings))} | run |"
    rows = [
        f"| {plain(text)} | {' | '.join(verdicts.get(reading, '') for reading in readings)} | {name} |"
        for (name, text, _), verdicts in found.items()
    ]
    return [head, "|---" * (len(readings) + 2) + "|", *rows]


def _run_name(run: Run) -> str:
    """The experiment's name, with its scale where that is not the paper's."""
    name = Path(run["experiment"]).name
    return name if run["scale"] == "paper" else f"{name}, {run['scale']} scale"


def sentence(claim: Mapping[str, Any]) -> str:
    """A claim's sentence with its place; ours are marked.

    >>> sentence({"sentence": "It rises.", "place": "Fig. 4", "ours": False})
    'It rises. (Fig. 4)'
    >>> sentence({"sentence": "So does its twin", "place": "Fig. 4", "ours": True})
    'So does its twin (Fig. 4; ours)'
    """
    place = claim["place"]
    if claim["ours"]:
        place = "ours" if place == "ours" else f"{place}; ours"
    return f"{claim['sentence']} ({place})"


def power_of_agreement(runs: Sequence[Run]) -> str:
    """How much it means that cells agree: one line for each reading of the tables, "" where no table has K-means.

    A cell agrees where the paper's value is within the range of our seeds, widened by its tolerance. If the paper's
    seed were one more draw of ours, (n − 1)/(n + 1) of the values would be inside the range itself.
    """
    found = [_power(reading, runs) for reading in sorted({str(run["reading"]) for run in runs})]
    rows = [row for row in found if row]
    if not rows:
        return ""
    head = (
        "| reading | printed cells | distinct | measured | agree | inside the range itself | expected there "
        "| agree by the tolerance alone | agreeing, not K-means itself | of those: K-means agrees too "
        "| of those: chance agrees too |"
    )
    return "\n".join([head, "|---" * 11 + "|", *rows])


def _power(reading: str, runs: Sequence[Run]) -> str:
    tables = [run for run in runs if run["reading"] == reading and "/table" in str(run["experiment"])]
    cells = [cell for run in tables for cell in run["cells"] if cell["paper"] is not None]
    baseline = {
        _pair(cell["column"]): cell["mean"] for cell in cells if cell["row"] == "K-means" and cell["mean"] is not None
    }
    if not baseline:
        return ""
    distinct = {(cell["column"], cell["paper"], tuple(cell["values"])) for cell in cells}
    measured = [cell for cell in cells if cell["verdict"] in JUDGED]
    agree = [cell for cell in measured if cell["verdict"] == "agrees"]
    inside = [cell for cell in agree if min(_known(cell)) <= cell["paper"] <= max(_known(cell))]
    expected = sum(inside_range_expected(len(_known(cell))) for cell in measured)
    others = [cell for cell in agree if "K-means" not in cell["row"]]
    shares = [sum(_window(cell, value(cell)) for cell in others) for value in (_of(baseline), lambda _: CHANCE)]
    counts = [len(cells), len(distinct), len(measured), len(agree)]
    counts += [len(inside), round(expected), len(agree) - len(inside), len(others), *shares]
    return f"| {_words(reading)} | {' | '.join(map(str, counts))} |"


def _of(baseline: Mapping[str, float]) -> Any:
    return lambda cell: baseline.get(_pair(cell["column"]))


def _window(cell: Mapping[str, Any], value: float | None) -> bool:
    tolerance = cell.get("tolerance", 2.0)
    return value is not None and min(_known(cell)) - tolerance <= value <= max(_known(cell)) + tolerance


def _known(cell: Mapping[str, Any]) -> list[float]:
    return [value for value in cell["values"] if value is not None]


def _pair(column: str) -> str:
    """The pair of classes, whatever the auxiliary ones."""
    return column.split(" (")[0]


def _words(reading: str) -> str:
    return reading.replace("_", " ")


def plain(text: str) -> str:
    """As it stands in a table: bars would end the cell, and tags would be read as HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
