"""A table's values over seeds, and how claims about rows are judged from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from local_elasticity.papers.experiment import Claim


@dataclass(frozen=True)
class Grid:
    """Accuracy in percent by (row, column), one for every seed, NaN where there is none."""

    values: Mapping[tuple[str, str], Sequence[float]]
    columns: Sequence[str]

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


def judge_ahead(claim: Claim, grid: Grid, rows: Sequence[str], others: Sequence[str]) -> Claim:
    """That the best of `rows` is ahead of the best of `others`, on average over the pairs, at every seed."""
    first, second = grid.best(rows), grid.best(others)
    gaps = _known(grid.average(first) - grid.average(second))
    by_column = (grid.of(first) - grid.of(second)).mean(1)
    evidence = (
        f"{first} {_mean(grid.average(first)):.1f} against {second} {_mean(grid.average(second)):.1f}, averages over "
        f"{_count(len(by_column), 'pair')} and {_count(len(gaps), 'seed')}; ahead at {int((gaps > 0).sum())} of "
        f"{_count(len(gaps), 'seed')}, on {int((by_column > 0).sum())} of {_count(len(by_column), 'pair')}"
    )
    return claim.judged([bool(gap > 0) for gap in gaps], _mean(gaps), evidence)


def judge_gains(
    claim: Claim, grid: Grid, pairs: Sequence[tuple[str, str]], *, everywhere: bool = False, unit: str = " points"
) -> Claim:
    """That the first row of every pair is ahead of the second: on average over the columns at every seed, or, where the
    sentence says always, in every column on average over the seeds.
    """
    gains = [grid.of(first) - grid.of(second) for first, second in pairs]
    outcomes = [_known(gain.mean(1 if everywhere else 0)) > 0 for gain in gains]
    said = "; ".join(
        f"{first} − {second}: {_mean(gain):+.2g}{unit} (sd over seeds {_sd(gain.mean(0)):.2g}), ahead in "
        f"{int((_known(gain.mean(1)) > 0).sum())} of {_count(len(gain), 'column')}"
        for (first, second), gain in zip(pairs, gains, strict=True)
    )
    return claim.judged([bool(one) for found in outcomes for one in found], _mean(np.concatenate(gains)), said)


def judge_likeness(claim: Claim, grid: Grid, pairs: Sequence[tuple[str, str]], *, within: float) -> Claim:
    """That two rows are the same up to `within` points, in every column on average over the seeds."""
    gaps = [np.abs((grid.of(first) - grid.of(second)).mean(1)) for first, second in pairs]
    said = "; ".join(
        f"{first} and {second}: {_mean(gap):.1f} points apart on average, at most {np.nanmax(gap):.1f}"
        for (first, second), gap in zip(pairs, gaps, strict=True)
    )
    return claim.judged([bool(one <= within) for gap in gaps for one in _known(gap)], _mean(np.concatenate(gaps)), said)


def judge_spread(claim: Claim, grid: Grid, rows: Sequence[str], *, least: float) -> Claim:
    """That the column matters: means over seeds range over more than `least` points and three standard errors."""
    outcomes, spreads, said = [], [], []
    for row in rows:
        values = grid.of(row)
        if np.isnan(values).all():
            continue
        means, noise = values.mean(1), _mean(values.std(1, ddof=min(1, values.shape[1] - 1))) / values.shape[1] ** 0.5
        spread = float(means.max() - means.min())
        outcomes.append(spread > max(least, 3 * noise))
        spreads.append(spread)
        said.append(
            f"{row}: from {means.min():.1f} ({grid.columns[int(means.argmin())]}) to {means.max():.1f} "
            f"({grid.columns[int(means.argmax())]}), standard error {noise:.1f}"
        )
    return claim.judged(outcomes, _mean(np.array(spreads)) if spreads else None, "; ".join(said))


def judge_below(claim: Claim, grid: Grid, rows: Sequence[str], bound: float) -> Claim:
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


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
