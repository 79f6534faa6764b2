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

from local_elasticity.statistics.bootstrap import draws, quantiles, reduced
from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.statistics.class_pairs import ReadPairs, read_pairs

QUARTILES = (0.25, 0.5, 0.75)

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
        low, high: a bootstrap interval of the ratio; sources and targets are resampled within their classes, as one
            where the targets are the sources.
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

    def further(self, order: int = 1) -> tuple[float, float, float]:
        """How many times as far a step moves its own class as other classes, with its interval: ratio^(−1/order).

        Args:
            order: how the measure scales with the change of a prediction; 2 for `kl`, which is quadratic.

        Returns:
            The value, and the lower and upper end of its interval.
        """
        return tuple(float(times(one, order)) for one in (self.ratio, self.high, self.low))  # type: ignore[return-value]

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
    some = ClassBlocks.of(values, rows, columns, square, rng)
    balanced = _balanced(some.medians(some.rows, some.columns))
    if resamples and np.isfinite(ratio):
        low, high = quantiles(_resampled(values, rows, columns, square, resamples, rng), level)
    if resamples and np.isfinite(balanced):
        again = np.array([_balanced(one) for one in some.resampled(resamples, rng)])
        balanced_low, balanced_high = quantiles(again, level)
    if permutations and np.isfinite(balanced):
        ratios = np.array([_balanced(one) for one in some.permuted(permutations, rng)])
        ratios = ratios[np.isfinite(ratios)]
        baseline = float(quartiles(ratios[None])[1, 0])
        p_value = float((1 + (ratios <= balanced).sum()) / (1 + len(ratios)))
    known, (of_one, of_two) = np.isfinite(values), pairs_by_class(rows, columns, square)
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
    return np.array([quartiles(values[chosen][None])[:, 0] for chosen in pairs_by_class(rows, columns, square)])


def _medians(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool) -> tuple[float, float]:
    within, between = within_and_between(values, rows, columns, square=square)[:, 1]
    return float(within), float(between)


def pairs_by_class(rows: np.ndarray, columns: np.ndarray, square: bool) -> tuple[np.ndarray, np.ndarray]:
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


def times(ratio: Any, order: int = 1) -> Any:
    """How many times as far a step moves its own class, from the ratio of a measure of that order.

    >>> times(0.25), times(0.25, order=2)
    (4.0, 2.0)
    """
    return quotient(1.0, ratio) ** (1 / max(1, order))


def _resampled(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    square: bool,
    resamples: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The ratio in every resample."""
    drawn = draws(rng, values.shape, resamples, square=square, classes=(rows, columns))
    chosen = pairs_by_class(rows, columns, square)
    within, between = (reduced(np.where(pairs, values, np.nan), "median", None, *drawn) for pairs in chosen)
    found: np.ndarray = quotient(between, within)[1:]
    return found


def _balanced(medians: np.ndarray) -> float:
    """exp of the mean over classes a ≠ b of (m_ab + m_ba − m_aa − m_bb) / 2, m the medians of logarithms."""
    own = np.diagonal(medians)
    with np.errstate(invalid="ignore"):
        found = (medians + medians.T - own[:, None] - own)[np.triu_indices(len(medians), 1)] / 2
    found = found[~np.isnan(found)]
    return float(np.exp(found.mean())) if len(found) else float("nan")
