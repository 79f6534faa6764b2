"""Which pairs of classes are coupled: moved further by each other's steps than the two classes alone explain.

Some classes have steps that move everything, and some are moved by everything. With M_ab the median over the pairs of
source class a and target class b,

    log M_ab ≈ r_a + c_b  over a ≠ b, by median polish,    expected_ab = exp(r_a + c_b),
    excess_ab = (M_ab / expected_ab)^(1/order),

so an excess of 3 says: a step on a moves b three times as far as row a and column b of the class matrix suggest.
Medians keep one strong pair from changing what the others are compared with. Measures with signs use differences
instead: M_ab ≈ r_a + c_b and excess_ab = M_ab − expected_ab.

K classes have K (K − 1) directed pairs, and the largest of so many is large by chance. The baseline is therefore the
largest excess over all pairs, where the classes of the examples are permuted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.checks import check_count, check_share
from local_elasticity.measures.registry import is_ratio, known_measure, order_of
from local_elasticity.statistics.class_blocks import ClassBlocks
from local_elasticity.statistics.class_pairs import ReadPairs, pair_rows, read_pairs
from local_elasticity.statistics.locality import pooled
from local_elasticity.words import in_natural_order, number, percent, times

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

FEWEST_CLASSES = 4
"""With fewer classes, r and c explain the pairs nearly or wholly."""

SWEEPS = 10
"""Of the median polish (Tukey, 1977), over rows and then columns."""

NEARLY_NOTHING = 0.01
"""A share of the value; what is expected is called about 0 below it."""

NO_PAIR = "No coupled pair of classes was found"
"""How a sentence begins where none is coupled."""

LARGER_NAMED = 2
"""Large values without coupling that a sentence names."""

PROBES_TESTED, DRAWS = 16, 100
"""The most earlier matrices that pairs are tested in, and how many resamples and permutations each has."""

Place = tuple[int, int]
"""Of a pair of classes: row and column."""


@dataclass(frozen=True)
class Coupling:
    """Every directed pair of classes beside what its row and column suggest; printed, the coupled pairs.

    Attributes:
        classes: the classes, in the order of rows and columns.
        value: the median over the pairs of two classes, [K, K], source classes in rows, as `le.class_pairs` gives it.
        expected: what row and column suggest, [K, K]; NaN on the diagonal and where there are no pairs.
        excess: (value / expected)^(1/order), how many times as far; for measures with signs value − expected.
        low, high: its bootstrap interval; sources and targets are resampled within their classes.
        p_value: how often the largest excess of permuted classes is as large, [K, K].
        baseline: the 95 % quantile of the largest excess of permuted classes.
        measure: what the numbers are, such as `"kl"`; "" where that is not known.
        signed: whether excesses are differences; then pairs far below what is expected are coupled too.
    """

    classes: list[object]
    value: np.ndarray
    expected: np.ndarray
    excess: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    baseline: float
    measure: str = ""
    signed: bool = False

    def coupled(self) -> list[Place]:
        """The directed pairs whose interval is beyond the baseline, the largest value first.

        Returns:
            Two places in `classes` for each: source and target.
        """
        with np.errstate(invalid="ignore"):
            beyond = self.low > self.baseline
            if self.signed:
                beyond |= self.high < -self.baseline
        return self._by_value(beyond)

    def course(self, medians: np.ndarray, at: Place) -> np.ndarray:
        """The excess of one pair at several moments, such as the probes of a history; without a test.

        Args:
            medians: of all pairs of classes at each moment, [t, K, K].
            at: the places of the two classes in them.

        Returns:
            An excess for each moment, [t], stated as `excess` is.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = medians if self.signed else np.log(medians)
        return _unscaled(residuals(scaled)[:, at[0], at[1]], self.measure, self.signed)

    def frame(self) -> pd.DataFrame:
        """One row for each pair of different classes, the coupled ones first, and the largest values first.

        Returns:
            A frame with the columns `source_class`, `target_class`, `value`, `expected`, `excess`, `low`, `high` (of
            the excess), `p_value` and `coupled`.
        """
        import pandas as pd

        coupled = self.coupled()
        rest = [at for at in self._by_value(np.isfinite(self.value)) if at not in set(coupled)]
        names = ("value", "expected", "excess", "low", "high", "p_value")
        rows = [
            (self.classes[a], self.classes[b], *(float(getattr(self, name)[a, b]) for name in names), (a, b) in coupled)
            for a, b in (*coupled, *rest)
        ]
        return pd.DataFrame(rows, columns=["source_class", "target_class", *names, "coupled"])

    def name(self, at: Place, shortened: Callable[[str], str] = str) -> str:
        """The two classes, from source to target.

        Args:
            at: their places in `classes`.
            shortened: how a long name is written.

        Returns:
            Words such as "cat → dog".
        """
        arrow = "↔" if self._symmetric else "→"
        return f"{shortened(str(self.classes[at[0]]))} {arrow} {shortened(str(self.classes[at[1]]))}"

    def sentence(self, at: Place, shortened: Callable[[str], str] = str) -> tuple[str, str]:
        """One pair: its value, and how that compares with what its row and column suggest.

        Args:
            at: the places of the two classes.
            shortened: how a long name is written.

        Returns:
            The sentence in two parts: the names with the value, and the comparison.
        """
        a, b = (shortened(str(self.classes[one])) for one in at)
        name, value = self.name(at, shortened), self._amount(self.value[at])
        if self.signed and abs(self.expected[at]) < NEARLY_NOTHING * abs(self.value[at]):
            interval = f"({number(float(self.low[at]))} to {number(float(self.high[at]))})"
            return f"{name}: {value}", f"{interval}, where row {a} and column {b} suggest about 0."
        side = ("above " if self.excess[at] > 0 else "below ") * self.signed
        expected = f"what row {a} and column {b} suggest ({self._amount(self.expected[at])})"
        return f"{name}: {value},", f"{self._excess(at)} {side}{expected}."

    def larger(self, shown: Sequence[Place], shortened: Callable[[str], str] = str) -> str:
        """Why the largest values that are not coupled are not, where they are larger than one that is.

        Args:
            shown: the coupled pairs that they are compared with.
            shortened: how a long name is written.

        Returns:
            A sentence on up to two pairs; "" where all larger values are coupled.
        """
        coupled = set(self.coupled())
        if self._symmetric:
            coupled |= {(b, a) for a, b in coupled}
        least = min((abs(self.value[at]) for at in shown), default=np.inf)
        rest = [
            (a, b)
            for a, b in self._by_value(np.isfinite(self.excess))
            if (a, b) not in coupled and abs(self.value[a, b]) > least and (a < b or not self._symmetric)
        ][:LARGER_NAMED]
        if not rest:
            return ""
        named = [
            f"{self.name(at, shortened)} ({self._amount(self.value[at])}; its row and column suggest "
            f"{self._amount(self.expected[at])})"
            for at in rest
        ]
        reached = f"an excess of {self._reach}" if self.signed else f"{self._reach} what row and column suggest"
        return f"Large but not coupled: {' and '.join(named)}. Permuted labels reach {reached}."

    @property
    def nothing(self) -> str:
        """Why no pair is coupled, with the largest excess; "" where one is."""
        if self.coupled():
            return ""
        if not np.isfinite(self.excess).any():
            if len(self.classes) < FEWEST_CLASSES:
                return (
                    f"Coupled pairs are searched for among {FEWEST_CLASSES} or more classes, not {len(self.classes)}."
                )
            if np.isfinite(self.value[~np.eye(len(self.classes), dtype=bool)]).any():
                return "The medians over the pairs of different classes are not above 0, so none can be compared."
            return "No two classes have pairs with a value, so none can be coupled."
        at = self._by_value(np.isfinite(self.excess), self.excess)[0]
        verb = "differs clearly from" if self.signed else "is clearly above"
        within = f"is within what permuted class labels give ({self._reach})"
        if abs(self.excess[at]) > self.baseline:
            within = f"is uncertain: its interval reaches into what permuted class labels give ({self._reach})"
        return (
            f"{NO_PAIR}: none {verb} what its row and column suggest. The largest excess, "
            f"{self._excess(at)} in {self.name(at)}, {within}."
        )

    def __str__(self) -> str:
        return self.nothing or "\n".join(" ".join(self.sentence(at)) for at in self.coupled())

    def _by_value(self, chosen: np.ndarray, value: np.ndarray | None = None) -> list[Place]:
        size = np.abs(self.value if value is None else value)
        different = chosen & ~np.eye(len(self.classes), dtype=bool)
        return sorted(((int(a), int(b)) for a, b in np.argwhere(different)), key=lambda at: -size[at])

    def _amount(self, value: float) -> str:
        """Ratios in percent of how far the source itself moves."""
        return percent(value ** (1 / order_of(self.measure))) if is_ratio(self.measure) else number(value)

    def _excess(self, at: Place) -> str:
        """With its interval; of differences the size."""
        value, low, high = (float(part[at]) for part in (self.excess, self.low, self.high))
        if not self.signed:
            return times(value, low, high)
        value, low, high = (value, low, high) if value > 0 else (-value, -high, -low)
        return f"{number(value)} ({number(low)} to {number(high)})"

    @property
    def _symmetric(self) -> bool:
        known = known_measure(self.measure)
        return known is not None and known.symmetric

    @property
    def _reach(self) -> str:
        return number(self.baseline) if self.signed else f"{number(self.baseline)}×"


def coupling(
    S: ArrayLike | ReadPairs,
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    *,
    measure: str | None = None,
    level: float = 0.95,
    resamples: int = 200,
    permutations: int = 200,
    seed: int = 0,
) -> Coupling:
    """Which pairs of classes are coupled: further from what their row and column suggest than permuted classes give.

    The report page shows these pairs. Of more than 160 sources or targets, intervals and baseline are computed from
    160 that are sampled class by class.

    Args:
        S: similarity, [n, m]: a tensor, an array, or the result of `le.similarity`, which brings its own classes.
        source_labels, target_labels: a class for each source and target; target_labels default to source_labels.
        measure: the name of the measure; by default what the result of `le.similarity` says. Ratios such as `relative`
            are divided by what is expected, and of `kl` the root is taken; for other measures it is subtracted. A
            measure that is not registered is divided if no value is below 0.
        level, resamples, seed: of the bootstrap intervals.
        permutations: how often classes are permuted for the baseline.

    Returns:
        A `Coupling`: `.frame()` has a row for each pair of classes; printed, it names the coupled pairs, or says that
        none was found. With fewer than four classes no pair is coupled.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import numpy as np, local_elasticity as le
    >>> rng, classes = np.random.default_rng(0), np.repeat(["cat", "dog", "fox", "owl", "pig"], 12)
    >>> S = rng.lognormal(-2, 0.5, size=(60, 60)) * np.where((classes[:, None] == "cat") & (classes == "owl"), 8, 1)
    >>> found = le.coupling(S, classes, measure="relative")
    >>> print(found)
    cat → owl: 101 %, 7.2× (5.7–9.2×) what row cat and column owl suggest (14 %).
    >>> found.frame().query("coupled")[["source_class", "target_class"]].values.tolist()
    [['cat', 'owl']]
    """
    check_share("level", level)
    check_count("resamples", resamples)
    check_count("permutations", permutations)
    check_count("seed", seed, least=0)
    if measure is None:
        measure = str(getattr(S, "attrs", {}).get("measure", ""))
    values, rows, columns, square = pooled(S if isinstance(S, tuple) else read_pairs(S, source_labels, target_labels))
    known = known_measure(measure)
    signed = bool((values < 0).any()) if known is None else not known.ratio
    classes = in_natural_order([*rows.tolist(), *columns.tolist()])
    medians = _medians(classes, values, rows, columns, square)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = medians if signed else np.log(medians)
    found = residuals(scaled[None])[0]
    if len(classes) < FEWEST_CLASSES or not np.isfinite(found).any():
        none = np.full(medians.shape, np.nan)
        return Coupling(classes, medians, none, none, none, none, none, float("nan"), measure, signed)
    rng = np.random.default_rng(seed)
    some = ClassBlocks.of(values, rows, columns, square, rng, logarithms=not signed)
    order = np.array([some.labels.index(one) for one in classes])
    drawn, again, by_chance = (
        residuals(np.array(list(several)))[:, order[:, None], order]
        for several in (
            [some.medians(some.rows, some.columns)],
            some.resampled(resamples, rng),
            some.permuted(permutations, rng),
        )
    )
    by_chance = np.abs(by_chance) if signed else by_chance
    largest = np.nanmax(np.where(np.isnan(by_chance), -np.inf, by_chance), axis=(1, 2))
    with np.errstate(invalid="ignore"):
        reached = largest[:, None, None] >= (np.abs(found) if signed else found)
    p_value = np.where(np.isfinite(found), (1 + reached.sum(0)) / (1 + len(largest)), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of pairs that no resample has
        low, high = np.nanquantile(found + again - drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    expected = medians - found if signed else np.exp(scaled - found)
    excess, low, high = (_unscaled(part, measure, signed) for part in (found, low, high))
    baseline = float(_unscaled(np.quantile(largest, level), measure, signed))
    return Coupling(classes, medians, expected, excess, low, high, p_value, baseline, measure, signed)


def coupled_since(
    values: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    pairs: Sequence[tuple[object, object]],
    *,
    square: bool,
    measure: str,
) -> list[int]:
    """From which matrix on pairs of classes are coupled for good, where they are in the last of several.

    Every matrix has the test of `coupling`, with fewer draws. Where there are many, an even share of them is tested.

    Args:
        values: similarities over time, [t, n, m].
        rows, columns: the classes of sources and targets.
        pairs: source and target class of every pair.
        square: whether the targets are the sources.
        measure: its name.

    Returns:
        A place among the matrices for each pair.

    >>> classes = np.repeat(list("abcde"), 8)
    >>> values = np.random.default_rng(0).lognormal(-2, 0.3, size=(3, 40, 40))
    >>> values[1:, :8, 8:16] *= 6
    >>> coupled_since(values, classes, classes, [("a", "b")], square=False, measure="relative")
    [1]
    """
    last = len(values) - 1
    found = dict.fromkeys(pairs, last)
    tested = np.unique(np.linspace(0, last, min(last, PROBES_TESTED) + 1).round().astype(int))[:-1]
    left = set(found)
    for place in map(int, tested[::-1]):
        if not left:
            break
        read = values[place], rows, columns, None, square
        one = coupling(read, measure=measure, resamples=DRAWS, permutations=DRAWS)
        left &= {(one.classes[a], one.classes[b]) for a, b in one.coupled()}
        found |= dict.fromkeys(left, place)
    return [found[one] for one in pairs]


def _unscaled(excess: np.ndarray, measure: str, signed: bool) -> np.ndarray:
    """Differences as they are; of logarithms, how many times as far."""
    return excess if signed else np.exp(excess / order_of(measure))


def _medians(
    classes: Sequence[object], values: np.ndarray, rows: np.ndarray, columns: np.ndarray, square: bool
) -> np.ndarray:
    """The median over the pairs of every two classes, [K, K]; NaN where there is none."""
    place = {one: at for at, one in enumerate(classes)}
    found = np.full((len(classes), len(classes)), np.nan)
    for a, b, value, *_ in pair_rows((values, rows, columns, None, square), "median", "exclude", 0):
        found[place[a], place[b]] = value
    return found


def residuals(medians: np.ndarray) -> np.ndarray:
    """What sources and targets do not explain of the medians of different classes, [r, K, K]; NaN on the diagonal.

    >>> m = np.add.outer([1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 0.0])[None]
    >>> bool(np.nanmax(np.abs(residuals(m))) < 1e-9)
    True
    """
    left = np.where(np.isfinite(medians), medians, np.nan)
    each = np.arange(left.shape[1])
    left[:, each, each] = np.nan
    empty = np.isnan(left)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows without a number, which stay so
        for average in (np.nanmean, np.nanmedian):  # medians alone need not find sums with an empty diagonal
            for axis in (2, 1) * SWEEPS:
                middle = average(left, axis=axis, keepdims=True)
                left = np.where(empty, np.nan, left - np.where(np.isnan(middle), 0, middle))
    return left
