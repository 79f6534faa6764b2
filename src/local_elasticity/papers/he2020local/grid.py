"""What sentences about the rows of a table compare, seed by seed. Rows are averaged over the table's columns, the pairs
of classes, unless the sentence is about every pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from local_elasticity.papers.experiment import Values
from local_elasticity.statistics.claims import Alternatives, NotMeasuredError

Measure = Callable[[Values], Alternatives]
Pairs = Sequence[tuple[str, str]]


def best(row: str, others: Sequence[str]) -> Measure:
    """One row less each of the others, on average over the columns."""
    return some_best([row], others)


def some_best(rows: Sequence[str], others: Sequence[str]) -> Measure:
    """Some of the rows less each of the others, on average over the columns."""

    def measure(values: Values) -> Alternatives:
        return [{f"{row} − {other}": _lead(values, row, other).mean(0) for other in others} for row in rows]

    return measure


def best_elsewhere(rows: Sequence[str], others: Sequence[str]) -> Measure:
    """The same without the column in which the row leads most, on average over seeds and competitors."""

    def measure(values: Values) -> Alternatives:
        alternatives = []
        for row in rows:
            leads = {other: _lead(values, row, other) for other in others}
            if len(values.columns(row)) == 1:
                raise NotMeasuredError(f"{row}: one column only")
            most = int(np.nan_to_num(np.mean(list(leads.values()), axis=(0, 2)), nan=-np.inf).argmax())
            alternatives.append(
                {f"{row} − {other}": np.delete(lead, most, axis=0).mean(0) for other, lead in leads.items()}
            )
        return alternatives

    return measure


def gains(pairs: Pairs, over_columns: Callable[..., np.ndarray] = np.mean) -> Measure:
    """The first row of every pair less the second: the mean, or the median, over the columns."""

    def measure(values: Values) -> Alternatives:
        return [{f"{first} − {second}": over_columns(_lead(values, first, second), axis=0) for first, second in pairs}]

    return measure


def gains_everywhere(pairs: Pairs) -> Measure:
    """The first row of every pair less the second, in every column."""

    def measure(values: Values) -> Alternatives:
        return [{name: gap for first, second in pairs for name, gap in _by_column(values, first, second)}]

    return measure


def gains_somewhere(first: str, second: str) -> Measure:
    """The first row less the second, each column being a case of its own."""

    def measure(values: Values) -> Alternatives:
        return [{name: gap} for name, gap in _by_column(values, first, second)]

    return measure


def by_choice(rows: Sequence[str]) -> Measure:
    """A row's values, the columns being the choices."""

    def measure(values: Values) -> Alternatives:
        return [{f"{row}, {column}": values.of(row, column) for column in values.columns(row)} for row in rows]

    return measure


def every(rows: Sequence[str]) -> Measure:
    """All cells of the rows."""

    def measure(values: Values) -> Alternatives:
        return [{f"{row}, {column}": values.of(row, column) for row in rows for column in values.columns(row)}]

    return measure


def ratio(first: str, second: str) -> Measure:
    """The first row over the second, both averaged over the columns."""

    def measure(values: Values) -> Alternatives:
        return [{f"{first} / {second}": values.average(first) / values.average(second)}]

    return measure


def in_the_way(way: str, measure_of: Callable[[Callable[[str], str]], Measure]) -> Measure:
    """The same for rows clustered in a certain way, or as the reading has them where that is its way."""

    def measure(values: Values) -> Alternatives:
        def named(row: str) -> str:
            other = f"{row}, {way}"
            return other if values.columns(other) else row

        return measure_of(named)(values)

    return measure


def _lead(values: Values, first: str, second: str) -> np.ndarray:
    return np.asarray(values.row(first) - values.row(second))


def _by_column(values: Values, first: str, second: str) -> list[tuple[str, np.ndarray]]:
    columns = values.columns(first)
    return [(f"{first} − {second}, {c}", values.of(first, c) - values.of(second, c)) for c in columns]
