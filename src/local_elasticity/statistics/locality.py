"""Locality: how far a step moves its own class, compared with other classes.

    ratio = median of S over pairs of different classes / median of S over pairs of one class,
    times = ratio^(−1/order),

over all pairs, an example with itself aside. `times` says how many times as far a step moves its own class: 1 where it
moves all classes alike. A measure that is quadratic in the change of a prediction, as `kl` is, has order 2. Sentences,
pages and verdicts are about `times`; `ratio` is the quotient of the measure's own numbers, as the papers report it. All
pairs have the same weight, because one class whose steps hardly move itself would dominate a mean over classes.

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

from local_elasticity.checks import check_count, check_share
from local_elasticity.measures.registry import known_measure, order_of
from local_elasticity.statistics.bootstrap import draws, quantiles, reduced
from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.statistics.class_pairs import ReadPairs, read_pairs
from local_elasticity.statistics.exceeded import Exceeded, exceeded
from local_elasticity.words import number, p_value, percent
from local_elasticity.words import times as times_in_words

QUARTILES = (0.25, 0.5, 0.75)

LOCAL = 1.25
"""Learning is called local if a step moves its own class more than this many times as far."""

NO_STRUCTURE = "No structure found"
"""How a sentence begins where permuted classes give the same."""

SIGNIFICANT = 0.05
"""Permuted classes must have a ratio as small less often than this."""

EXCEPTIONS_NAMED = 2
"""Classes that a sentence names whose steps move another class further."""

Verdict = Literal["local", "hardly local", "not local", "no structure found", "undecided"]


@dataclass(frozen=True)
class Locality:
    """How local a similarity is, with its interval, and what labels at random would give; printed, two sentences.

    Attributes:
        within, between: medians over pairs of one class, and of different classes.
        ratio: between / within, of the measure's own numbers; NaN where `within` is not positive.
        low, high: a bootstrap interval of the ratio; sources and targets are resampled within their classes, as one
            where the targets are the sources.
        balanced: the ratio free of differences between classes in how far they move and are moved.
        balanced_low, balanced_high: its interval.
        baseline: the median of the balanced ratio where classes are permuted.
        p_value: how often permuted classes have a balanced ratio as small.
        pairs_within, pairs_between: how many pairs have a value.
        unresolved: the share of pairs without one.
        measure: what the numbers are, such as `"kl"`; "" where that is not known.
        permutations: how often classes were permuted.
        classes: how many there are.
        exceptions: the classes whose steps move another class further than their own, beyond what resampling and the
            number of pairs of classes explain.
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
    measure: str = ""
    permutations: int = 0
    classes: int = 0
    exceptions: tuple[Exceeded, ...] = ()

    @property
    def order(self) -> int:
        """How the measure scales with the change of a prediction: 2 for `kl`, which is quadratic."""
        return order_of(self.measure)

    @property
    def verdict(self) -> Verdict:
        """What both ratios, their intervals and the baseline support.

        `"local"`: by both intervals a step moves its own class more than 1.25 times as far, and permuted classes seldom
        have a ratio as small. `"hardly local"`: both are below 1.25 times, but permuted classes seldom have a ratio as
        small. `"not local"`: both are below 1, and permuted classes seldom have a ratio as large. `"no structure
        found"`: permuted classes have such a balanced ratio too, and its interval covers the baseline. `"undecided"`:
        all else, too few examples for example. Of `kl` the root is taken first, so that measures have one threshold.
        """
        least = float(times(max(self.high, self.balanced_high), self.order))
        most = float(times(min(self.low, self.balanced_low), self.order))
        if self.p_value < SIGNIFICANT:
            return "local" if least > LOCAL else "hardly local" if most <= LOCAL else "undecided"
        if most < 1 and self.p_value > 1 - SIGNIFICANT:
            return "not local"
        return "no structure found" if self.balanced_low <= self.baseline <= self.balanced_high else "undecided"

    @property
    def times(self) -> float:
        """How many times as far a step moves its own class as other classes: ratio^(−1/order)."""
        return self.further()[0]

    def further(self, order: int | None = None) -> tuple[float, float, float]:
        """How many times as far a step moves its own class as other classes, with its interval: ratio^(−1/order).

        Args:
            order: how the numbers scale with the change of a prediction; by default that of the measure.

        Returns:
            The value, and the lower and upper end of its interval.
        """
        order = self.order if order is None else order
        return tuple(float(times(one, order)) for one in (self.ratio, self.high, self.low))  # type: ignore[return-value]

    @property
    def headline(self) -> str:
        """One sentence with the value and its interval, as the page's first screen has it."""
        known = known_measure(self.measure)
        value, low, high = self.further()
        far = times_in_words(value, low, high) if np.isfinite([low, high]).all() else times_in_words(value)
        medians = f"{number(self.within)} within a class and {number(self.between)} between classes"
        if known is None or not known.ratio:
            compared = f", {far} as large within" if known is None and np.isfinite(value) else ""
            return f"The median {f'of {self.measure} ' if known else ''}over pairs is {medians}{compared}."
        if value == np.inf and self.verdict == "local":
            return "A step on one example moves others of its class, and most examples of other classes not at all."
        if not np.isfinite(value):
            return f"How far a step moves its own class cannot be compared with other classes: {self._why(medians)}."
        own = "moves other examples of its class"
        if self.verdict == "undecided" and np.isfinite(self.p_value):
            balanced = [float(times(one, self.order)) for one in (self.balanced, self.balanced_high, self.balanced_low)]
            return (
                f"Undecided: a step on one example {own} {far} as far as examples of other classes, or "
                f"{times_in_words(*balanced)} with all pairs of classes weighted alike. "
                f'"local" means that both are clearly above {LOCAL:g}×. More examples would narrow the intervals.'
            )
        return {
            "hardly local": f"A step on one example {own} hardly further than examples of other classes: {far} as far.",
            "not local": f"A step on one example {own} less far than examples of other classes: {far} as far.",
            "no structure found": (
                f"{NO_STRUCTURE}: a step {own} {far} as far as examples of other classes, as it does where class "
                "labels are permuted."
            ),
        }.get(self.verdict, f"A step on one example {own} {far} as far as examples of other classes.")

    def _why(self, medians: str) -> str:
        """Why there is no ratio."""
        if not self.pairs_between and not self.pairs_within:
            return "no pair has a value"
        if not self.pairs_between or not self.pairs_within:
            lacking = "different classes" if not self.pairs_between else "one class"
            return f"no pair of {lacking} has a value"
        return f"the medians over pairs are {medians}"

    @property
    def evidence(self) -> str:
        """The baseline and the verdict; "" where no baseline is known, or the measure is no share of a change."""
        known = known_measure(self.measure)
        if not np.isfinite(self.p_value) or (known is not None and not known.ratio):
            return ""
        baseline = times_in_words(float(times(self.baseline, self.order)))
        tested = p_value(self.p_value, floor=1 / (1 + self.permutations))
        verdict = f"Baseline with permuted class labels: {baseline} (p {tested}). Verdict: {self.verdict}."
        return " ".join(filter(None, (verdict, self._excepted)))

    @property
    def _excepted(self) -> str:
        """For which classes learning is not local, where it is for most."""
        if not self.exceptions or self.verdict not in ("local", "hardly local"):
            return ""

        def far(value: float) -> str:
            return percent(value ** (1 / self.order))

        few = [
            f"{one.source_class} → {one.target_class} ({far(one.value)}, itself {far(one.own)})"
            for one in self.exceptions[:EXCEPTIONS_NAMED]
        ]
        rest = [f"{len(self.exceptions) - len(few)} more"] * (len(self.exceptions) > len(few))
        count = f"{len(self.exceptions)} of {self.classes} classes"
        return f"But for {count} a step moves another class clearly further than its own: {', '.join([*few, *rest])}."

    def row(self) -> dict[str, Any]:
        """The numbers for a table.

        Returns:
            Values by name: the attributes, `times` with its interval, and the verdict.
        """
        value, low, high = self.further()
        return {**vars(self), "times": value, "times_low": low, "times_high": high, "verdict": self.verdict}

    def __str__(self) -> str:
        return " ".join(filter(None, (self.headline, self.evidence)))


def locality(
    S: ArrayLike | ReadPairs,
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    resamples: int = 200,
    permutations: int = 199,
    seed: int = 0,
) -> Locality:
    """How local a similarity is: its own class compared with other classes, with an interval and a baseline.

    Args:
        S: similarity, [n, m]: a tensor, an array, or the result of `le.similarity`, which brings its own classes.
        source_labels, target_labels: a class for each source and target; target_labels default to source_labels.
        measure: the name of the measure; by default what the result of `le.similarity` says. Of `kl`, how far is read
            from the root.
        level, resamples, seed: of the bootstrap interval; `resamples=0` leaves it out.
        permutations: how often classes are permuted; 0 leaves the baseline out.

    Returns:
        A `Locality`; printed, it says how many times as far a step moves its own class, what permuted classes give, and
        the verdict. Its ratios are NaN where there is one class only, or where the median within classes is not
        positive, as measures with signs may have it.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch, local_elasticity as le
    >>> S = torch.tensor([[1.0, 0.8, 0.2], [0.6, 1.0, 0.4], [0.1, 0.3, 1.0]])
    >>> found = le.locality(S, ["cat", "cat", "dog"], resamples=0, permutations=0)
    >>> round(found.within, 3), round(found.between, 3), round(found.ratio, 3)
    (0.7, 0.25, 0.357)
    >>> print(le.locality(S, ["cat", "cat", "dog"], measure="relative", resamples=0, permutations=0))
    A step on one example moves other examples of its class 2.8× as far as examples of other classes.
    """
    check_share("level", level)
    for name, value in {"resamples": resamples, "permutations": permutations, "seed": seed}.items():
        check_count(name, value, least=0)
    if measure is None:
        measure = str(getattr(S, "attrs", {}).get("measure", ""))
    read = S if isinstance(S, tuple) else read_pairs(S, source_labels, target_labels)
    values, rows, columns, square = pooled(read)
    rng = np.random.default_rng(seed)
    within, between = _medians(values, rows, columns, square)
    low = high = balanced_low = balanced_high = baseline = p = float("nan")
    exceptions: tuple[Exceeded, ...] = ()
    ratio = quotient(between, within)
    some = ClassBlocks.of(values, rows, columns, square, rng)
    balanced = _balanced(some.medians(some.rows, some.columns))
    if resamples and np.isfinite(ratio):
        low, high = quantiles(_resampled(values, rows, columns, square, resamples, rng), level)
    if resamples and np.isfinite(balanced):
        again = np.array(list(some.resampled(resamples, rng)))
        balanced_low, balanced_high = quantiles(np.array([_balanced(one) for one in again]), level)
        exceptions = exceeded(values, rows, columns, square, some, again, SIGNIFICANT)
    if permutations and np.isfinite(balanced):
        ratios = np.array([_balanced(one) for one in some.permuted(permutations, rng)])
        ratios = ratios[np.isfinite(ratios)]
        baseline = float(quartiles(ratios[None])[1, 0])
        p = float((1 + (ratios <= balanced).sum()) / (1 + len(ratios)))
    known, (of_one, of_two) = np.isfinite(values), pairs_by_class(rows, columns, square)
    counts, asked = (int((known & of_one).sum()), int((known & of_two).sum())), of_one | of_two
    unresolved = float(1 - known[asked].mean()) if asked.any() else float("nan")
    intervals = low, high, balanced, balanced_low, balanced_high
    return Locality(
        *(within, between, ratio, *intervals, baseline, p),
        *(*counts, unresolved, measure, permutations),
        classes=some.count,
        exceptions=exceptions,
    )


def columns(resamples: int, permutations: int) -> list[str]:
    """The names of `Locality.row` that such a call computes.

    >>> columns(resamples=0, permutations=0)
    ['within', 'between', 'ratio', 'times', 'balanced', 'pairs_within', 'pairs_between', 'unresolved']
    """
    interval, baseline = resamples > 0, permutations > 0
    return [
        *("within", "between", "ratio", *("low", "high") * interval, "times", *("times_low", "times_high") * interval),
        *("balanced", *("balanced_low", "balanced_high") * interval, *("baseline", "p_value") * baseline),
        *("pairs_within", "pairs_between", "unresolved", *("verdict",) * (interval and baseline)),
    ]


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
    return low + (place - below) * (high - low)


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

    >>> times(0.25), times(0.25, order=2), times(0.0)
    (4.0, 2.0, inf)
    """
    found = np.where(np.equal(ratio, 0), np.inf, quotient(1.0, ratio)) ** (1 / max(1, order))
    return found if found.ndim else float(found)


def _resampled(
    values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool, resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """The ratio in every resample."""
    drawn = draws(rng, values.shape, resamples, square=square, classes=(rows, columns))
    chosen = pairs_by_class(rows, columns, square)
    within, between = (reduced(np.where(pairs, values, np.nan), "median", None, *drawn) for pairs in chosen)
    return quotient(between, within)[1:]


def _balanced(medians: np.ndarray) -> float:
    """exp of the mean over classes a ≠ b of (m_ab + m_ba − m_aa − m_bb) / 2, m the medians of logarithms."""
    own = np.diagonal(medians)
    with np.errstate(invalid="ignore"):
        found = (medians + medians.T - own[:, None] - own)[np.triu_indices(len(medians), 1)] / 2
        found = found[~np.isnan(found)]
        return float(np.exp(found.mean())) if len(found) else float("nan")
