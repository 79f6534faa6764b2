"""Results that the page shows as sentences and tables: influences, step checks, and settings with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from local_elasticity.report.examples import as_given, is_picture, kept_examples
from local_elasticity.report.run import shown
from local_elasticity.statistics.over_seeds import MEANINGS
from local_elasticity.words import number, percent
from local_elasticity.words import p_value as p_in_words

MOST_TABLES = 100
"""Targets whose helpers and harmers are listed."""


LEAST_SHARE = 1e-4
"""Smaller shares are given as below it."""


@dataclass(frozen=True)
class TableCell:
    """One cell of a table.

    Attributes:
        text: what it says.
        example: side and position of the example that it names, such as `("source", 3)`; None for other cells.
        kept: a picture, text or vector of that example.
        bar: start and length of a bar, in percent of its width, and `"helps"` or `"harms"`.
    """

    text: str
    example: tuple[str, int] | None = None
    kept: str = ""
    bar: tuple[float, float, str] | None = None

    @property
    def picture(self) -> str:
        return self.kept if is_picture(self.kept) else ""

    @property
    def words(self) -> str:
        return "" if is_picture(self.kept) else self.kept


@dataclass(frozen=True)
class Table:
    """Rows of cells below a title; `numbers` are the columns that are aligned to the right."""

    title: TableCell
    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tabled:
    """One result as the page shows it: a headline, sentences, tables."""

    name: str
    about: str
    lead: str
    headline: str
    sentences: Sequence[str]
    tables: Sequence[Table]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def content(self) -> str:
        """What a page with this result contains of the user's data."""
        rows = sum(len(table.rows) for table in self.tables)
        examples = len({cell.example for cell in self._cells() if cell.kept})
        return f"{examples or 'no'} examples, {rows:,} table rows"

    def with_examples(self, examples: Any) -> Tabled:
        """The same with a picture, text or vector for each source (or of sources and targets, as a tuple) that is named
        and has none yet."""
        given = examples if isinstance(examples, tuple) else (examples, None)
        kept: dict[tuple[str, int], str] = {}
        notes = list(self.notes)
        for side, these in zip(("source", "target"), given, strict=True):
            places = sorted({cell.example[1] for cell in self._cells() if cell.example and cell.example[0] == side})
            if these is None or not places:
                continue
            values = as_given(these)
            if places[-1] >= len(values):
                notes.append(f"The given examples are not shown here: {len(values)} do not fit all {side}s.")
                continue
            some = kept_examples(values[places], len(places)).tolist()
            kept |= {(side, place): one for place, one in zip(places, some, strict=True)}

        def change(cell: TableCell) -> TableCell:
            return cell if cell.kept or cell.example not in kept else replace(cell, kept=kept[cell.example])

        return replace(self._changed(change), notes=tuple(notes))

    def without_examples(self) -> Tabled:
        return self._changed(lambda cell: replace(cell, kept=""))

    def _cells(self) -> list[TableCell]:
        return [cell for table in self.tables for row in (*table.rows, (table.title,)) for cell in row]

    def _changed(self, change: Callable[[TableCell], TableCell]) -> Tabled:
        return replace(
            self,
            tables=tuple(
                replace(table, title=change(table.title), rows=[[change(cell) for cell in row] for row in table.rows])
                for table in self.tables
            ),
        )


def tabled(name: str, one: Any) -> Tabled | None:
    """A result as sentences and tables; None if it is of another kind."""
    if hasattr(one, "rank_correlation") and hasattr(one, "checkpoints"):
        return _of_influences(name, one)
    if hasattr(one, "asked") and hasattr(one, "trials"):
        return _of_step_check(name, one)
    if hasattr(one, "paired") and isinstance(getattr(one, "before", None), tuple):
        return _of_seeds(name, one)
    return None


def _of_influences(name: str, found: Any) -> Tabled:
    """A table for each target: helpers, then harmers, with bars on a scale of its own."""
    frame = found.frame()
    targets = list(dict.fromkeys(frame["target"]))
    tables = [_of_target(frame[frame["target"] == target].to_dict("records")) for target in targets[:MOST_TABLES]]
    words = f"Helpers and harmers of the first {len(tables)} of {len(targets):,} targets are listed."
    notes = [words] * (len(targets) > len(tables))
    return Tabled(
        shown(name),
        "which examples help and harm",
        "How a training step on one example changes the loss of another, the target.",
        _strongest(tables, found),
        found.sentences(),
        tables,
        notes,
    )


def _strongest(tables: Sequence[Table], found: Any) -> str:
    """The strongest helper and harmer of a single target; of several, what is listed."""
    if len(tables) != 1:
        return f"The training examples, of {found.n:,}, that help and harm each of {found.m:,} targets most."
    (table,) = tables
    ends = {row[-1].text: row[0].text for row in reversed(table.rows)}
    verbs = {"helps": "helped", "harms": "harmed"}
    said = [f"{verb} most by example {ends[word]}" for word, verb in verbs.items() if word in ends]
    title = table.title.text
    return f"{title[0].upper()}{title[1:]} is {' and '.join(said)}." if said else "No example helps or harms."


def _of_target(rows: Sequence[Mapping[Any, Any]]) -> Table:
    values = [float(row["value"]) for row in rows]
    low, high = min(0.0, *values), max(0.0, *values)
    scale = 100 / ((high - low) or 1.0)
    cells = []
    for row, value in zip(rows, values, strict=True):
        effect = str(row["effect"])
        bar = round((min(0.0, value) - low) * scale, 1), round(abs(value) * scale, 1), effect
        kind = [TableCell(shown(row["source_class"]))] if "source_class" in row else []
        last = TableCell(number(value)), TableCell("", bar=bar), TableCell(effect)
        cells.append([_example(row, "source"), *kind, *last])
    kind_title = ["label"] if rows and "source_class" in rows[0] else []
    columns = ["training example", *kind_title, "change of the target's loss", "on this target's scale", "effect"]
    title = _example(rows[0], "target")
    title = replace(title, text=f"target {title.text}")
    return Table(title, columns, cells, frozenset({"change of the target's loss"}))


def _example(row: Mapping[Any, Any], side: str) -> TableCell:
    """A file or position, with what is kept of the example where the row has that."""
    text = shown(row[f"{side}_file"]) if f"{side}_file" in row else f"#{row[side]}"
    return TableCell(text, (side, int(row[side])), str(row.get(f"{side}_example", "")))


def _of_step_check(name: str, found: Any) -> Tabled:
    told = found.sentences()
    marks = {found.recommended: "auto", found.asked.step_size: "this step"}
    rows = [
        [
            *(TableCell(f"{trial.step_size:g}"), TableCell(marks.get(trial.step_size, "")), TableCell(trial.verdict)),
            _with_interval(trial.deviation, trial.deviation_low, trial.deviation_high, _share),
            _with_interval(trial.rank_correlation, trial.rank_low, trial.rank_high, number),
            TableCell(_share(trial.unresolved)),
        ]
        for trial in found.trials
    ]
    interval = f"({found.level:.0%} interval)"
    columns = ["step size", "", "verdict", f"deviation from small steps {interval}"]
    columns += [f"rank correlation with small steps {interval}", "pairs unresolved"]
    table = Table(TableCell("Step sizes that were tried"), columns, rows, frozenset({"step size", *columns[3:]}))
    lead = "Whether a training step is small enough for similarities to describe the network."
    return Tabled(shown(name), "is the step small?", lead, _sentence(told[0]), told[1:], (table,))


def _of_seeds(name: str, found: Any) -> Tabled:
    told = found.sentences()
    frames = {"Over all pairs": ("statistic", found.frame("overall"))}
    with suppress(ValueError):  # without classes there are no class pairs
        frames["Medians of class pairs"] = ("", found.frame("classes"))
    tables = [_of_differences(title, first, frame, found.level) for title, (first, frame) in frames.items()]
    lead = "What changes from one setting to another, over networks that were trained with several seeds."
    return Tabled(shown(name), "two settings", lead, _sentence(told[1]), [told[0], *told[2:]], tables)


def _of_differences(title: str, first: str, frame: Any, level: float) -> Table:
    names = [first] if first else ["source_class", "target_class"]
    corrected = "p_adjusted" in frame
    heads = [one.replace("_", " ") for one in names]
    columns = [*heads, "before", "after", f"difference ({level:.0%} interval)", "p"]
    columns += ["p corrected"] * corrected
    rows = []
    for row in frame.to_dict("records"):
        p_values = [row["p_value"], *([row["p_adjusted"]] if corrected else [])]
        rows.append(
            [
                *(TableCell(MEANINGS[row[one]] if first else shown(row[one])) for one in names),
                *(TableCell(number(row[one])) for one in ("before", "after")),
                _with_interval(row["difference"], row["low"], row["high"], number),
                *(TableCell("not tested" if p != p else p_in_words(p).removeprefix("= ")) for p in p_values),
            ]
        )
    return Table(TableCell(title), columns, rows, frozenset(columns[len(names) :]))


def _with_interval(value: float, low: float, high: float, words: Callable[[float], str]) -> TableCell:
    known = bool(np.isfinite([low, high]).all())
    return TableCell(words(value) + (f" ({words(low)} to {words(high)})" if known else ""))


def _share(value: float) -> str:
    """
    >>> _share(0.0012), _share(0.0), _share(3e-7)
    ('0.12 %', '0 %', '< 0.01 %')
    """
    return "< 0.01 %" if 0 < value < LEAST_SHARE else percent(value)


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."
