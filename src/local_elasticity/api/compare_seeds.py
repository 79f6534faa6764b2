"""What changes from one setting to another: networks of several seeds on either side, one number a seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from local_elasticity.api.alike import check_alike, other_circumstances
from local_elasticity.api.printed import Printed
from local_elasticity.checks import check_choice, check_count
from local_elasticity.extras import extra
from local_elasticity.measures.registry import order_of, with_unit
from local_elasticity.statistics.class_pairs import has_classes
from local_elasticity.statistics.locality import SIGNIFICANT
from local_elasticity.statistics.over_seeds import (
    LEAST_SEEDS,
    MEANINGS,
    adjusted,
    class_medians,
    compared_over_seeds,
    overall_statistics,
)
from local_elasticity.words import number
from local_elasticity.words import p_value as p_in_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BySeed = Literal["classes", "overall", "seeds"]
BY_SEED = ("classes", "overall", "seeds")

TOLD = 3
"""Pairs of classes that the text names."""


def check_seeds(A: Any, B: Any, *, paired: bool) -> None:
    """Raise where two sides cannot be compared seed by seed.

    >>> check_seeds(["one"], ["two", "three"], paired=False)
    Traceback (most recent call last):
    ValueError: A: 1 seed; a comparison of two settings needs at least 2 seeds on each side
    """
    for name, side in (("A", A), ("B", B)):
        if not isinstance(side, (list, tuple)):
            raise TypeError(f"{name}: expected a list of results, one for each seed, as on the other side")
        if len(side) < LEAST_SEEDS:
            count = f"{len(side)} seed{'s' * (len(side) != 1)}"
            raise ValueError(f"{name}: {count}; a comparison of two settings needs at least 2 seeds on each side")
    if paired and len(A) != len(B):
        raise ValueError(f"paired: {len(A)} and {len(B)} seeds; give both sides the same seeds in the same order")


@dataclass(frozen=True, repr=False)
class ComparedSeeds(Printed):
    """Two settings, compared by networks of several seeds; build one with `le.compare([…], […])`.

    Each network gives one number a statistic. The intervals and p-values are those of t tests over these numbers:
    Welch's, or the paired one. They say what other seeds would give, at the same examples.

    Attributes:
        before, after: the similarities of each side, one for each seed.
        paired: whether the two at each place share a seed.
        level: of the intervals.
        notes: what else differs, in words.
    """

    before: tuple[xr.DataArray, ...]
    after: tuple[xr.DataArray, ...]
    paired: bool = False
    level: float = 0.95
    notes: tuple[str, ...] = ()

    @property
    def measure(self) -> str:
        return str(self.after[0].attrs.get("measure", "similarity"))

    @property
    def _classified(self) -> bool:
        return all(map(has_classes, (*self.before, *self.after)))

    def frame(self, by: BySeed = "classes", top: int | None = None) -> pd.DataFrame:
        """One row for each pair of classes, statistic or seed.

        Args:
            by: `"classes"` (the median of each pair of classes: means over seeds, and their difference with a t
                interval, `p_value` of the single pair of classes and `p_adjusted`, Holm's, for the number of pairs of
                classes), `"overall"` (the same for how many times as far, the medians within and between classes, and
                the median over all pairs), or `"seeds"` (the overall statistics of each network).
            top: keep the rows with the largest differences, these first.

        Returns:
            A frame. `before` and `after` are means over seeds and `difference` is after − before; `seeds_before` and
            `seeds_after` say how many have a value.

        Raises:
            ValueError: if `by` is none of these, or no classes are known.
        """
        check_choice("by", by, BY_SEED)
        if by == "seeds":
            return self._of_seeds.copy()
        found = self._classes if by == "classes" else self._overall
        if top is None:
            return found.copy()
        check_count("top", top)
        order = found["difference"].abs().sort_values(ascending=False, kind="stable").index
        return found.loc[order].head(top).reset_index(drop=True)

    @cached_property
    def _of_seeds(self) -> pd.DataFrame:
        import pandas as pd

        rows = [
            {"side": side, "seed": place, **overall_statistics(S)}
            for side, several in (("before", self.before), ("after", self.after))
            for place, S in enumerate(several)
        ]
        return pd.DataFrame(rows)

    @cached_property
    def _overall(self) -> pd.DataFrame:
        sides = [self._of_seeds[self._of_seeds["side"] == side] for side in ("before", "after")]
        names = [name for name in MEANINGS if all(np.isfinite(side[name]).any() for side in sides)]
        before, after = (side[names].to_numpy(dtype=float) for side in sides)
        found = self._tested(before, after)
        found.insert(0, "statistic", names)
        return found

    @cached_property
    def _classes(self) -> pd.DataFrame:
        if not self._classified:
            raise ValueError('by: no classes are known; give source_labels= to le.similarity, or pass by="overall"')
        pairs = class_medians(self.before[0])[0]
        before, after = (np.array([class_medians(S)[1] for S in side]) for side in (self.before, self.after))
        found = self._tested(before, after)
        for place, name in enumerate(("source_class", "target_class")):
            found.insert(place, name, [pair[place] for pair in pairs])
        found.insert(list(found).index("p_value") + 1, "p_adjusted", adjusted(found["p_value"].to_numpy()))
        return found

    def _tested(self, before: np.ndarray, after: np.ndarray) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(vars(compared_over_seeds(before, after, paired=self.paired, level=self.level)))

    def plot(self, columns: int = 2) -> Figure:
        """The statistic of each seed on both sides, and the difference of each pair of classes.

        Args:
            columns: 1 or 2, the width in columns of print.

        Returns:
            A matplotlib figure.
        """
        with extra("report"):
            from local_elasticity.report.figures import seeds_figure

        name = "times" if (self._overall["statistic"] == "times").any() else "median"
        numbers, sides = self._of_seeds[name].to_numpy(), self._of_seeds["side"].to_numpy()
        before, after = numbers[sides == "before"], numbers[sides == "after"]
        words = f"{self.measure}: {MEANINGS[name]}"
        return seeds_figure(before, after, words, self._classes if self._classified else None, self.paired, columns)

    def sentences(self) -> list[str]:
        """What changes, and what to know about it.

        Returns:
            One sentence each.
        """
        n, m = self.after[0].shape
        test = "paired t test over seeds" if self.paired else "Welch's t test over seeds, not paired"
        measure = self.measure if order_of(self.measure) == 1 else with_unit(self.measure)
        told = [
            f"{measure} of {n} × {m} pairs: {len(self.before)} seeds before, {len(self.after)} after; means over "
            f"seeds, differences with {self.level:.0%} intervals ({test})"
        ]
        told += [self._of_statistic(row) for row in self._overall.itertuples()]
        if self._classified:
            told += self._changed_classes()
        return [*told, *self._unmeasured(), *self.notes]

    def _of_statistic(self, row: Any) -> str:
        change = f"{row.difference:+.3g}"
        if np.isfinite(row.p_value):
            change += f" ({row.low:+.3g} to {row.high:+.3g}; p {p_in_words(row.p_value)})"
        else:
            change += f" (not tested: {_why_untested(row)})"
        return f"{MEANINGS[row.statistic]}: {number(row.before)} before, {number(row.after)} after, difference {change}"

    def _changed_classes(self) -> list[str]:
        """The pairs of classes with the largest differences, of those that changed clearly where some did."""
        known = self._classes.dropna(subset="difference")
        tested = known.dropna(subset="p_adjusted")
        clear = tested[tested["p_adjusted"] < SIGNIFICANT]
        several = known if clear.empty else clear
        largest = several["difference"].abs().sort_values(ascending=False, kind="stable").index[:TOLD]
        rows: Iterable[Any] = several.loc[largest].itertuples()
        named = ", ".join(f"{row.source_class} → {row.target_class} {row.difference:+.3g}" for row in rows)
        if known.empty:
            return ["no class pair has a value on both sides"]
        limit = f"p {'≥' if clear.empty else '<'} {SIGNIFICANT:g} after Holm's correction for {len(tested)} class pairs"
        count = "no class pair" if clear.empty else f"{len(clear)} class pair{'s' * (len(clear) != 1)}"
        return [f"{count} changed clearly ({limit}); largest differences of their medians: {named}"]

    def _unmeasured(self) -> list[str]:
        """Seeds that lack a value, which enter no mean, and statistics that no test was made of."""
        frames = [self._overall, *([self._classes] if self._classified else [])]
        sizes = (("seeds_before", len(self.before)), ("seeds_after", len(self.after)))
        lacking = sum(int((frame[name] < size).sum()) for frame in frames for name, size in sizes)
        if not lacking:
            return []
        return [
            "some networks have no value for some statistics (no pair resolved, or no finite ratio); they are left out "
            "there: see seeds_before and seeds_after in the frame"
        ]


def compared_seeds(
    before: Sequence[xr.DataArray], after: Sequence[xr.DataArray], *, paired: bool, level: float
) -> ComparedSeeds:
    """Both sides after a check that all are of the same examples and the same measure, and no two of a side equal."""
    named = [(f"A[{place}]", S) for place, S in enumerate(before)]
    named += [(f"B[{place}]", S) for place, S in enumerate(after)]
    first_name, first = named[0]
    for name, S in named[1:]:
        check_alike(first, S, f"{first_name}, {name}")
    for side in (named[: len(before)], named[len(before) :]):
        for (one_name, one), (other_name, other) in combinations(side, 2):
            if np.array_equal(one.values, other.values, equal_nan=True):
                raise ValueError(
                    f"{one_name}, {other_name}: the same numbers twice; each must be of a network trained with another "
                    "seed"
                )
    differ = (note for _, S in named[1:] for note in other_circumstances(first, S))
    return ComparedSeeds(tuple(before), tuple(after), paired, level, tuple(dict.fromkeys(differ)))


def _why_untested(row: Any) -> str:
    few = min(row.seeds_before, row.seeds_after)
    if few < LEAST_SEEDS:
        return f"{few} seed{'s' * (few != 1)} of a side with a value, at least {LEAST_SEEDS} are needed"
    return "all seeds of a side have the same value"
