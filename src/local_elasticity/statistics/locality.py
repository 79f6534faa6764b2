"""Locality: how far a step moves other classes, compared with its own.

    ratio = median of S over pairs of different classes / median of S over pairs of one class,

over all pairs, an example with itself aside. It is 1 where a step moves all classes alike, and 0 where it moves its own
class alone. All pairs have the same weight, because one class whose steps hardly move itself rules a mean over classes.

Where classes differ in size, a class whose steps are broader, or whose examples move more, can make that ratio small
without any locality. What is concluded therefore rests on the balanced ratio as well,

    the geometric mean over classes a ≠ b of √(M_ab M_ba / (M_aa M_bb)),    M the medians by pair of classes,

which such differences cancel in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from local_elasticity.statistics.bootstrap import quantiles, reduced
from local_elasticity.statistics.class_pairs import ReadPairs, read_pairs

QUARTILES = (0.25, 0.5, 0.75)

MOST_EXAMPLES = 160
"""Sources and targets that the balanced ratio is computed from; of more, so many are drawn at random."""

LOCAL = 0.8
"""Below this ratio learning is called local."""

SIGNIFICANT = 0.05
"""Permuted classes must have a ratio as small less often than this."""

Verdict = Literal["local", "hardly local", "not local", "no structure found", "undecided"]


@dataclass(frozen=True)
class Locality:
    """The locality ratio with its interval, and what labels at random would give.

    Attributes:
        within, between: medians over pairs of one class, and of different classes.
        ratio: between / within.
        low, high: a bootstrap interval of the ratio; sources and targets are resampled within their classes.
        balanced: the ratio free of differences between classes in how far they move and are moved.
        balanced_low, balanced_high: its interval.
        baseline: the median of the balanced ratio where classes are permuted.
        p_value: how often permuted classes have a balanced ratio as small.
        pairs_within, pairs_between: how many pairs have a value.
        unresolved: the share of pairs without one.
    """

    within: float
    between: float
    ratio: float
    low: float
    high: float
    balanced: float
    balanced_low: float
    balanced_high: float
    baseline: float
    p_value: float
    pairs_within: int
    pairs_between: int
    unresolved: float

    @property
    def verdict(self) -> Verdict:
        """What both ratios, their intervals and the baseline support.

        `"local"`: both intervals are below 0.8, and permuted classes seldom have a ratio as small. `"hardly local"`:
        both are above that, but permuted classes seldom have a ratio as small. `"not local"`: both are above 1, and
        permuted classes seldom have a ratio as large. `"no structure found"`: permuted classes have such a balanced
        ratio too, and its interval covers the baseline. `"undecided"`: all else, too few examples for example.
        """
        low, high = min(self.low, self.balanced_low), max(self.high, self.balanced_high)
        if self.p_value < SIGNIFICANT:
            return "local" if high < LOCAL else "hardly local" if low >= LOCAL else "undecided"
        if low > 1 and self.p_value > 1 - SIGNIFICANT:
            return "not local"
        return "no structure found" if self.balanced_low <= self.baseline <= self.balanced_high else "undecided"

    def __str__(self) -> str:
        text = f"within {self.within:.3g}, between {self.between:.3g}, ratio {self.ratio:.3g}"
        if np.isfinite(self.low):
            text += f" (95 % interval {self.low:.3g} to {self.high:.3g})"
        if np.isfinite(self.baseline):
            text += f"; balanced {self.balanced:.3g} ({self.balanced_low:.3g} to {self.balanced_high:.3g})"
            text += f", classes permuted {self.baseline:.3g}, p = {self.p_value:.2g}"
        return text


def locality(
    S: ArrayLike | ReadPairs,
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    *,
    level: float = 0.95,
    resamples: int = 200,
    permutations: int = 199,
    seed: int = 0,
) -> Locality:
    """How local a similarity is: other classes compared with the own class, with an interval and a baseline.

    Args:
        S: similarity, [n, m]: a tensor, an array, or the result of `le.similarity`, which brings its own classes.
        source_labels, target_labels: a class for each source and target; target_labels default to source_labels.
        level, resamples, seed: of the bootstrap interval; `resamples=0` leaves it out.
        permutations: how often classes are permuted; 0 leaves the baseline out.

    Returns:
        A `Locality`. Its numbers are NaN where there is one class only.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> S = torch.tensor([[1.0, 0.8, 0.2], [0.6, 1.0, 0.4], [0.1, 0.3, 1.0]])
    >>> found = le.locality(S, ["cat", "cat", "dog"], resamples=0, permutations=0)
    >>> round(found.within, 3), round(found.between, 3), round(found.ratio, 3)
    (0.7, 0.25, 0.357)
    """
    read = S if isinstance(S, tuple) else read_pairs(S, source_labels, target_labels)
    values, rows, columns, square = pooled(read)
    rng = np.random.default_rng(seed)
    within, between = _medians(values, rows, columns, square)
    low = high = balanced_low = balanced_high = baseline = p_value = float("nan")
    ratio = quotient(between, within)
    some = _Blocks.of(values, rows, columns, square, rng)
    balanced = some.balanced(some.rows, some.columns)
    if resamples and np.isfinite(ratio):
        low, high = quantiles(_resampled(values, rows, columns, square, resamples, rng), level)
    if resamples and np.isfinite(balanced):
        balanced_low, balanced_high = quantiles(some.resampled(resamples, rng), level)
    if permutations and np.isfinite(balanced):
        ratios = some.permuted(permutations, rng)
        baseline = float(quartiles(ratios[None])[1, 0])
        p_value = float((1 + (ratios <= balanced).sum()) / (1 + len(ratios)))
    known, (of_one, of_two) = np.isfinite(values), _pairs(rows, columns, square)
    counts, asked = (int((known & of_one).sum()), int((known & of_two).sum())), of_one | of_two
    unresolved = float(1 - known[asked].mean()) if asked.any() else float("nan")
    intervals = low, high, balanced, balanced_low, balanced_high
    return Locality(within, between, ratio, *intervals, baseline, p_value, *counts, unresolved)


def pooled(read: ReadPairs) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Values, NaN where there is none; classes of rows and columns; whether targets are sources."""
    values, rows, columns, _, square = read
    values = np.asarray(values)
    values = values.astype(np.result_type(values.dtype, np.float32))
    values[~np.isfinite(values)] = np.nan
    return values, rows, columns, square


def within_and_between(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, *, square: bool) -> np.ndarray:
    """The quartiles over pairs of one class, and over pairs of different classes, [2, 3]; an example with itself does
    not count where the targets are the sources.
    """
    return np.array([quartiles(values[chosen][None])[:, 0] for chosen in _pairs(rows, columns, square)])


def _medians(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool) -> tuple[float, float]:
    within, between = within_and_between(values, rows, columns, square=square)[:, 1]
    return float(within), float(between)


def _pairs(rows: np.ndarray, columns: np.ndarray, square: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which pairs are of one class, and which of different classes."""
    same = rows[:, None] == columns
    return same & ~np.eye(len(rows), dtype=bool) if square else same, ~same


def quartiles(values: np.ndarray) -> np.ndarray:
    """Quartiles of the finite numbers in every row, [3, rows], interpolated; NaN where there is none.

    >>> quartiles(np.array([[3.0, 1.0, 2.0, np.nan], [np.nan] * 4]))[1].tolist()
    [2.0, nan]
    """
    if not values.size:
        return np.full((len(QUARTILES), len(values)), np.nan)
    known = np.isfinite(values)
    place = np.outer(QUARTILES, np.maximum(known.sum(1) - 1, 0))
    below, above = np.floor(place).astype(int), np.ceil(place).astype(int)
    ranked = np.partition(np.where(known, values, np.nan), np.unique([below, above]), axis=1)
    rows = np.arange(len(values))
    low, high = ranked[rows, below], ranked[rows, above]
    found: np.ndarray = low + (place - below) * (high - low)
    return found


def quotient(above: Any, below: Any) -> Any:
    """above / below where that is positive, and NaN elsewhere.

    >>> quotient(np.array([1.0, 1.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(np.asarray(below) > 0, np.divide(above, below), np.nan)
    return found if found.ndim else float(found)


def _resampled(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    square: bool,
    resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The ratio in every resample."""
    drawn = [_stratified(labels, resamples, rng) for labels in (rows, columns)]
    chosen = _pairs(rows, columns, square)
    within, between = (reduced(np.where(pairs, values, np.nan), "median", None, *drawn) for pairs in chosen)
    found: np.ndarray = quotient(between, within)
    return found


def _stratified(labels: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each example is in a resample that has as many of every class, [r, n]. Classes come in the order in
    which they appear, so that their names do not matter."""
    counts = np.zeros((resamples, len(labels)))
    for label in dict.fromkeys(labels.tolist()):
        members = np.flatnonzero(labels == label)
        chosen = rng.integers(len(members), size=(resamples, len(members)))
        for i in range(resamples):
            counts[i, members] = np.bincount(chosen[i], minlength=len(members))
    return counts


@dataclass(frozen=True)
class _Blocks:
    """Values in logarithms, NaN where there is none, and the classes of rows and columns as whole numbers."""

    logs: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    square: bool

    @classmethod
    def of(
        cls, values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool, rng: np.random.Generator
    ) -> _Blocks:
        """Of at most so many examples, drawn class by class in proportion."""
        codes = {label: code for code, label in enumerate(dict.fromkeys([*rows.tolist(), *columns.tolist()]))}
        rows, columns = (np.array([codes[label] for label in labels.tolist()], dtype=int) for labels in (rows, columns))
        i = _drawn(rows, rng)
        j = i if square else _drawn(columns, rng)
        some = values[np.ix_(i, j)].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(some >= 0, np.log(some), np.nan)
        if square:
            np.fill_diagonal(logs, np.nan)
        return cls(logs, rows[i], columns[j], square)

    def balanced(self, rows: np.ndarray, columns: np.ndarray, logs: np.ndarray | None = None) -> float:
        """exp of the mean over classes a ≠ b of (m_ab + m_ba − m_aa − m_bb) / 2, m the medians of logarithms."""
        logs = self.logs if logs is None else logs
        classes = int(max(self.rows.max(initial=0), self.columns.max(initial=0))) + 1
        known = ~np.isnan(logs)
        at = (rows[:, None] * classes + columns)[known]
        order = np.lexsort((logs[known], at))
        ordered, at = logs[known][order], at[order]
        starts, ends = (np.searchsorted(at, np.arange(classes**2), side) for side in ("left", "right"))
        medians = np.full(classes**2, np.nan)
        full = ends > starts
        low, high = (starts[full] + ends[full] - 1) // 2, (starts[full] + ends[full]) // 2
        medians[full] = (ordered[low] + ordered[high]) / 2
        m = medians.reshape(classes, classes)
        own = np.diagonal(m)
        with np.errstate(invalid="ignore"):
            found = (m + m.T - own[:, None] - own)[np.triu_indices(classes, 1)] / 2
        found = found[~np.isnan(found)]
        return float(np.exp(found.mean())) if len(found) else float("nan")

    def resampled(self, resamples: int, rng: np.random.Generator) -> np.ndarray:
        """With sources and targets drawn again within their classes."""
        found = []
        for _ in range(resamples):
            i, j = _redrawn(self.rows, rng), _redrawn(self.columns, rng)
            found.append(self.balanced(self.rows[i], self.columns[j], self.logs[np.ix_(i, j)]))
        return np.array(found)

    def permuted(self, permutations: int, rng: np.random.Generator) -> np.ndarray:
        """Those that are numbers, with classes permuted; an example keeps one class as a source and as a target."""
        found = []
        for _ in range(permutations):
            columns = rng.permutation(self.columns)
            found.append(self.balanced(columns if self.square else self.rows, columns))
        ratios: np.ndarray = np.array(found)
        known: np.ndarray = ratios[np.isfinite(ratios)]
        return known


def _drawn(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """At most so many examples, in the order in which they come; at least two of each class, where it has them."""
    if len(classes) <= MOST_EXAMPLES:
        return np.arange(len(classes))
    chosen = []
    for one in np.unique(classes):
        members = np.flatnonzero(classes == one)
        many = min(len(members), max(2, len(members) * MOST_EXAMPLES // len(classes)))
        chosen.append(rng.choice(members, many, replace=False))
    return np.sort(np.concatenate(chosen))


def _redrawn(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    found = np.empty(len(classes), dtype=int)
    for one in np.unique(classes):
        members = np.flatnonzero(classes == one)
        found[members] = rng.choice(members, len(members))
    return found
