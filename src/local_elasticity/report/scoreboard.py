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

COUNTED = "verdicts (a sentence has one for each run)"
WHOSE = {False: "of the paper", True: "our own: variants and controls"}
OURS = "All sentences, with our own variants and controls in their places"

CHANCE = 50.0
"""Accuracy of a guess between two classes, in percent."""


def scoreboard(runs: Sequence[Run]) -> str:
    """Markdown tables: how many verdicts there are of each kind; every sentence of the paper with its verdicts by
    reading; and, below a line that opens, all sentences with ours in their places. Runs at another scale than the
    paper's are counted by themselves."""
    readings = sorted({str(run["reading"]) for run in runs})
    lines = [f"| {COUNTED} | {' | '.join(VERDICTS)} |", "|---" * (len(VERDICTS) + 1) + "|"]
    for ours, whose in WHOSE.items():
        for scale, reading in sorted({_group(run) for run in runs}):
            given = [claim["verdict"] for run, claim in _sentences(runs, ours) if _group(run) == (scale, reading)]
            if given:
                counts = " | ".join(str(given.count(verdict)) for verdict in VERDICTS)
                lines.append(f"| {whose}, {_words(reading)}{scale} | {counts} |")
    tables = [_every_sentence(_sentences(runs, *ours), readings) for ours in ((False,), (False, True))]
    tables[1] = opened(OURS, tables[1]) if tables[1] != tables[0] else ""
    return "\n\n".join(filter(None, ["\n".join(lines), *tables]))


def opened(title: str, content: str) -> str:
    """Markdown below a line that opens it; "" where there is nothing to show.

    >>> opened("All 3 numbers", "| a |").splitlines()
    ['<details><summary>All 3 numbers</summary>', '', '| a |', '', '</details>']
    """
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>" if content else ""


def _sentences(runs: Sequence[Run], *ours: bool) -> list[tuple[Run, Mapping[str, Any]]]:
    return [(run, claim) for run in runs for claim in run["claims"] if claim["ours"] in ours]


def _group(run: Run) -> tuple[str, str]:
    return _scale(run), str(run["reading"])


def _scale(run: Run) -> str:
    """In words, where it is not the paper's."""
    return "" if run["scale"] == "paper" else f" at {run['scale']} scale"


def _every_sentence(judged: Sequence[tuple[Run, Mapping[str, Any]]], readings: Sequence[str]) -> str:
    """A line for each sentence, whatever number of runs judge it."""
    found: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for run, claim in judged:
        found.setdefault((sentence(claim), claim["id"]), []).append((run["reading"], _run_name(run), claim["verdict"]))
    head = f"| sentence | {' | '.join(map(_words, readings))} | run |"
    rows = []
    for (text, _), given in found.items():
        verdicts = [_verdicts({name: verdict for of, name, verdict in given if of == one}) for one in readings]
        names = ", ".join(dict.fromkeys(name for _, name, _ in given))
        rows.append(f"| {plain(text)} | {' | '.join(verdicts)} | {names} |")
    return "\n".join([head, "|---" * (len(readings) + 2) + "|", *rows]) if rows else ""


def _verdicts(by_run: Mapping[str, str]) -> str:
    """One word where all runs agree, and else each verdict with its runs.

    >>> _verdicts({"svhn": "supported", "cifar10": "undecided", "cifar100": "undecided"})
    'supported (svhn), undecided (cifar10, cifar100)'
    """
    runs = {verdict: [run for run, given in by_run.items() if given == verdict] for verdict in by_run.values()}
    if len(runs) < 2:
        return "".join(runs)
    return ", ".join(f"{verdict} ({', '.join(names)})" for verdict, names in runs.items())


def _run_name(run: Run) -> str:
    """The experiment's name, with its scale where that is not the paper's."""
    return f"{Path(run['experiment']).name}{_scale(run)}"


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


POWER = (
    "printed cells",
    "distinct ones",
    "measured",
    "agree: inside the range of our seeds, widened by two points",
    "inside the range itself",
    "expected inside, if the paper's seed were one of ours",
    "agree because of the two points alone",
    "agree, and are neither K-means nor PCA + K-means",
    "of those: the widened range contains K-means too",
    "of those: the widened range contains chance (50 %) too",
)


def power_of_agreement(runs: Sequence[Run]) -> str:
    """How much it means that cells agree: a column for each reading of the tables, "" where no table has K-means.

    A cell agrees where the paper's value is within the range of our seeds, widened by its tolerance. If the paper's
    seed were one more draw of ours, (n − 1)/(n + 1) of the values would be inside the range itself.
    """
    found = {reading: _power(reading, runs) for reading in sorted({str(run["reading"]) for run in runs})}
    columns = {reading: counts for reading, counts in found.items() if counts}
    if not columns:
        return ""
    head = f"| cells of the tables | {' | '.join(map(_words, columns))} |"
    rows = [f"| {' | '.join([name, *map(str, row)])} |" for name, *row in zip(POWER, *columns.values(), strict=True)]
    return "\n".join([head, "|---" * (len(columns) + 1) + "|", *rows])


def _power(reading: str, runs: Sequence[Run]) -> list[int]:
    tables = [run for run in runs if run["reading"] == reading and "/table" in str(run["experiment"])]
    cells = [cell for run in tables for cell in run["cells"] if cell["paper"] is not None]
    baseline = {
        _pair(cell["column"]): cell["mean"] for cell in cells if cell["row"] == "K-means" and cell["mean"] is not None
    }
    if not baseline:
        return []
    distinct = {(cell["column"], cell["paper"], tuple(cell["values"])) for cell in cells}
    measured = [cell for cell in cells if cell["verdict"] in JUDGED]
    agree = [cell for cell in measured if cell["verdict"] == "agrees"]
    inside = [cell for cell in agree if min(_known(cell)) <= cell["paper"] <= max(_known(cell))]
    expected = sum(inside_range_expected(len(_known(cell))) for cell in measured)
    others = [cell for cell in agree if "K-means" not in cell["row"]]
    shares = [sum(_window(cell, value(cell)) for cell in others) for value in (_of(baseline), lambda _: CHANCE)]
    counts = [len(cells), len(distinct), len(measured), len(agree)]
    return [*counts, len(inside), round(expected), len(agree) - len(inside), len(others), *shares]


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
