"""A table's values over seeds, and how claims about rows are judged from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from local_elasticity.papers.experiment import Claim


@dataclass(frozen=True)
class TableGrid:
    """Accuracy in percent by (row, column), one for every seed, NaN where there is none; and what the paper printed."""

    values: Mapping[tuple[str, str], Sequence[float]]
    columns: Sequence[str]
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def of(self, row: str) -> np.ndarray:
        """A row's values, [columns, seeds]."""
        return np.array([self.values[row, column] for column in self.columns], dtype=float)

    def variant(self, row: str, way: str) -> str:
        """The name of a row clustered in a certain way, or the row's own where that is its way."""
        other = f"{row}, {way}"
        return other if (other, self.columns[0]) in self.values else row

    def average(self, row: str) -> np.ndarray:
        """A row's average over the columns at every seed, [seeds]; NaN where a column is missing."""
        return np.asarray(self.of(row).mean(0))

    def best(self, rows: Sequence[str]) -> str:
        """The row whose average over columns and seeds is highest."""
        return max(rows, key=lambda row: float(np.nan_to_num(self.average(row), nan=0.0).mean()))

    def gain(self, first: str, second: str) -> np.ndarray:
        """By how much one row is ahead of another, [columns, seeds]."""
        return np.asarray(self.of(first) - self.of(second))

    def lead(self, rows: Sequence[str], others: Sequence[str]) -> np.ndarray:
        """The average of the best of `rows` less that of the best of `others`, [seeds]."""
        return np.asarray(self.average(self.best(rows)) - self.average(self.best(others)))

    def printed(self, rows: Sequence[str], statistic: Callable[[TableGrid], float]) -> float | None:
        """A statistic of the paper's own table, a grid of one seed with the columns that are here; None where the paper
        prints no such row, or nothing of it was measured.
        """
        places = [(row, column) for row in rows for column in self.columns]
        if not all(place in self.paper for place in places):
            return None
        found = statistic(TableGrid({place: [self.paper[place]] for place in places}, self.columns))
        return None if np.isnan(found) else found


def judge_ahead(claim: Claim, grid: TableGrid, rows: Sequence[str], others: Sequence[str]) -> Claim:
    """That the best of `rows` is ahead of the best of `others`, on average over the pairs, at every seed. The paper's
    best rows may be others than ours.
    """
    first, second = grid.best(rows), grid.best(others)
    gaps = _known(grid.lead(rows, others))
    by_column = grid.gain(first, second).mean(1)
    evidence = (
        f"{first} {_mean(grid.average(first)):.1f} against {second} {_mean(grid.average(second)):.1f}, averages over "
        f"{_count(len(by_column), 'pair')} and {_count(len(gaps), 'seed')}; ahead at {int((gaps > 0).sum())} of "
        f"{_count(len(gaps), 'seed')}, on {int((by_column > 0).sum())} of {_count(len(by_column), 'pair')}"
    )
    paper = grid.printed([*rows, *others], lambda table: _mean(table.lead(rows, others)))
    return claim.judged([bool(gap > 0) for gap in gaps], gaps, evidence, paper)


def judge_gains(
    claim: Claim, grid: TableGrid, pairs: Sequence[tuple[str, str]], *, everywhere: bool = False, unit: str = " points"
) -> Claim:
    """That the first row of every pair is ahead of the second: on average over the columns at every seed, or, where the
    sentence says always, in every column on average over the seeds.
    """
    gains = [grid.gain(*pair) for pair in pairs]
    outcomes = [_known(gain.mean(1 if everywhere else 0)) > 0 for gain in gains]
    said = "; ".join(
        f"{first} − {second}: {_mean(gain):+.2g}{unit} (sd over seeds {_sd(gain.mean(0)):.2g}), ahead in "
        f"{int((_known(gain.mean(1)) > 0).sum())} of {_count(len(gain), 'column')}"
        for (first, second), gain in zip(pairs, gains, strict=True)
    )
    every = np.concatenate(gains)
    there = ~np.isnan(every).all(1)
    paper = grid.printed(
        [row for pair in pairs for row in pair],
        lambda table: _mean(np.concatenate([table.gain(*pair) for pair in pairs])[there]),
    )
    return claim.judged([bool(one) for found in outcomes for one in found], map(_mean, every.T), said, paper)


def judge_likeness(claim: Claim, grid: TableGrid, pairs: Sequence[tuple[str, str]], *, within: float) -> Claim:
    """That two rows are the same up to `within` points, in every column on average over the seeds."""
    gaps = [np.abs(grid.gain(*pair).mean(1)) for pair in pairs]
    said = "; ".join(
        f"{first} and {second}: {_mean(gap):.1f} points apart on average, at most {np.nanmax(gap):.1f}"
        for (first, second), gap in zip(pairs, gaps, strict=True)
    )
    every = np.concatenate(gaps)
    there = ~np.isnan(every)
    paper = grid.printed(
        [row for pair in pairs for row in pair],
        lambda table: _mean(np.abs(np.concatenate([table.gain(*pair) for pair in pairs]))[there]),
    )
    return claim.judged([bool(gap <= within) for gap in every[there]], _mean(every), said, paper)


def judge_spread(claim: Claim, grid: TableGrid, rows: Sequence[str], *, least: float) -> Claim:
    """That the column matters: means over seeds range over more than `least` points and three standard errors; a row
    without a value in some column is not judged.
    """
    judged = [row for row in rows if not np.isnan(grid.of(row)).all(1).any()]
    outcomes, spreads, said = [], [], []
    for row in judged:
        means, noise = np.nanmean(grid.of(row), 1), float(np.mean([_standard_error(seeds) for seeds in grid.of(row)]))
        spread = float(np.ptp(means))
        outcomes.append(spread > max(least, 3 * noise))
        spreads.append(spread)
        said.append(
            f"{row}: from {means.min():.1f} ({grid.columns[int(means.argmin())]}) to {means.max():.1f} "
            f"({grid.columns[int(means.argmax())]}), standard error {noise:.1f}"
        )
    paper = grid.printed(judged, lambda table: _mean(np.array([np.ptp(table.of(row)) for row in judged])))
    return claim.judged(outcomes, _mean(np.array(spreads)), "; ".join(said), paper)


def judge_below(claim: Claim, grid: TableGrid, rows: Sequence[str], bound: float) -> Claim:
    """That every value of these rows is below a bound."""
    values = _known(np.concatenate([grid.of(row).ravel() for row in rows]))
    said = f"at most {values.max():.2g} in {len(values)} nets" if len(values) else ""
    return claim.judged([bool(value < bound) for value in values], float(values.max()) if len(values) else None, said)


def _known(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[~np.isnan(values)])


def _mean(values: np.ndarray) -> float:
    known = _known(np.asarray(values).ravel())
    return float(known.mean()) if len(known) else float("nan")


def _sd(values: np.ndarray) -> float:
    known = _known(values)
    return float(known.std(ddof=1)) if len(known) > 1 else 0.0


def _standard_error(values: np.ndarray) -> float:
    return float(_sd(values) / np.sqrt(len(_known(values))))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
