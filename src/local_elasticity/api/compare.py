"""compare: what changed between two moments or two models, pair by pair, or between two settings, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import xarray as xr
from torch import nn

from local_elasticity.api.alike import as_one_similarity, check_alike, measured, other_circumstances
from local_elasticity.api.compare_seeds import ComparedSeeds, check_seeds, compared_seeds
from local_elasticity.api.printed import Printed
from local_elasticity.checks import check_choice, check_count, check_share
from local_elasticity.engine.problem import Problem
from local_elasticity.engine.update import DEFAULT_UPDATE, Update
from local_elasticity.extras import extra
from local_elasticity.measures.registry import order_of, with_unit
from local_elasticity.statistics.class_pairs import has_classes
from local_elasticity.statistics.comparison import (
    LEAST_UNITS,
    Comparison,
    compared,
    compared_by_class,
    compared_by_example,
)
from local_elasticity.statistics.locality import SIGNIFICANT
from local_elasticity.words import p_value as p_in_words
from local_elasticity.words import percent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

By = Literal["classes", "pairs", "sources", "targets"]
BY = ("classes", "pairs", "sources", "targets")

LEAST_RESAMPLES = 2
"""Below, there is no spread that a p-value could come from."""

TOLD = 3
"""Pairs of classes, or of examples, that the text names."""


@dataclass(frozen=True, repr=False)
class Compared(Printed):
    """Two similarities of the same examples, pair by pair; build one with `le.compare`.

    Attributes:
        before, after: the two similarities, [n, m]; differences are after − before.
        level, resamples, seed: of the bootstrap intervals; sources and targets are resampled.
        notes: what else differs between the two, in words.
    """

    before: xr.DataArray
    after: xr.DataArray
    level: float = 0.95
    resamples: int = 200
    seed: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def difference(self) -> xr.DataArray:
        """after − before, NaN where either is unresolved; an example with itself is left out."""
        found = self.after.copy(data=np.subtract(*self._values[::-1]))
        found.attrs = {"measure": f"change of {self.measure}", "targets_are_sources": self._square}
        return found

    @cached_property
    def overall(self) -> Comparison:
        """The median difference over all pairs, its interval and a test of no difference."""
        before, after = self._values
        return compared(after, before, square=self._square, **self._bootstrap)

    @property
    def measure(self) -> str:
        return str(self.after.attrs.get("measure", "similarity"))

    @property
    def _square(self) -> bool:
        return bool(self.after.attrs.get("targets_are_sources"))

    @cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """Both matrices without self-pairs."""
        both = []
        for S in (self.before, self.after):
            values = np.array(S.values, dtype=float)
            if self._square:
                np.fill_diagonal(values, np.nan)
            both.append(values)
        return both[0], both[1]

    def frame(self, by: By = "classes", top: int | None = None) -> pd.DataFrame:
        """One row for each pair of classes, pair of examples, source or target: before, after, difference.

        Args:
            by: `"classes"` (medians over pairs, with interval and p-values: `p_value` of the single pair of classes,
                `p_adjusted` for the largest of all pairs of classes), `"pairs"` (what changed most comes first),
                `"sources"` or `"targets"` (medians over the pairs of one example, with an interval).
            top: keep the rows with the largest differences, these first.

        Returns:
            A frame with the columns `before`, `after`, `difference`, and, except for pairs, `low`, `high` and `pairs`.
            Except for pairs, `before` and `after` are medians, and `difference` is the median of the pairs'
            differences, which is not after − before of these medians.

        Raises:
            ValueError: if `by` is none of these, or no classes are known.
        """
        check_choice("by", by, BY)
        if top is not None:
            check_count("top", top)
        found = self._pairs() if by == "pairs" else self._classes.copy() if by == "classes" else self._examples(by)
        if by != "pairs" and top is None:
            return found
        order = found["difference"].abs().sort_values(ascending=False, kind="stable").index
        return found.loc[order].head(len(found) if top is None else top).reset_index(drop=True)

    def _pairs(self) -> pd.DataFrame:
        frame = self.after.le.frame().drop(columns="value")
        before, after = self._values
        frame = frame.assign(before=before.ravel(), after=after.ravel(), difference=(after - before).ravel())
        return frame[np.isfinite(frame["difference"])].reset_index(drop=True)

    @cached_property
    def _classes(self) -> pd.DataFrame:
        if not has_classes(self.after):
            raise ValueError('by: no classes are known; give source_labels= to le.similarity, or pass by="pairs"')
        classes = self.after["source_class"].values, self.after["target_class"].values
        return compared_by_class(*self._values[::-1], *classes, square=self._square, **self._bootstrap)

    def _examples(self, by: str) -> pd.DataFrame:
        axis = by.removesuffix("s")
        before, after = self._values if axis == "source" else (part.T for part in self._values)
        found = compared_by_example(after, before, **self._bootstrap)
        if f"{axis}_class" in self.after.coords:
            found.insert(0, f"{axis}_class", self.after[f"{axis}_class"].values)
        found.insert(0, axis, self.after[axis].values)
        return found

    @property
    def _tested(self) -> str:
        """The p-value in words, or why there is none."""
        units, p_value = self.overall.units, self.overall.p_value
        if units < LEAST_UNITS:
            side = "examples" if self._square else "sources or targets"
            return f"no p-value from {units} {side}, which takes {LEAST_UNITS}"
        if np.isnan(p_value):
            return f"no p-value without resamples, which takes {LEAST_RESAMPLES}"
        return f"p {p_in_words(p_value, floor=2 / (1 + self.resamples))}"

    @property
    def _disagreement(self) -> list[str]:
        """What to go by where interval and p-value say different things."""
        found = self.overall
        if np.isnan(found.p_value) or (found.low <= 0 <= found.high) or found.p_value < 1 - self.level:
            return []
        return [
            f"the interval leaves 0 out, but p is above {1 - self.level:.2g}: the interval does not allow for few "
            "examples, and p does. Go by p, or measure more examples"
        ]

    @property
    def _changed_classes(self) -> str:
        """The pairs of classes with the largest differences, of those that changed clearly where some did."""
        known = self._classes.dropna(subset="difference")
        tested = known.dropna(subset="p_adjusted")
        clear = tested[tested["p_adjusted"] < SIGNIFICANT]
        several = known if clear.empty else clear
        largest = several["difference"].abs().sort_values(ascending=False, kind="stable").index[:TOLD]
        rows: Any = several.loc[largest].itertuples()
        named = ", ".join(f"{row.source_class} → {row.target_class} {row.difference:+.3g}" for row in rows)
        named = f"largest medians of the pairs' differences (not after − before of the medians): {named}"
        if tested.empty:
            return f"class pairs, not tested: {named}"
        limit = f"p {'≥' if clear.empty else '<'} {SIGNIFICANT:g} after correction for {len(tested)} class pairs"
        count = "no class pair" if clear.empty else f"{len(clear)} class pair{'s' * (len(clear) != 1)}"
        return f"{count} changed clearly ({limit}); {named}"

    @property
    def _untested_classes(self) -> list[str]:
        """Why some pairs of classes have no p-value."""
        known = self._classes.dropna(subset="difference")
        count = int(known["p_value"].isna().sum())
        if not count:
            return []
        if self.resamples < LEAST_RESAMPLES:
            return [f"class pairs are not tested without resamples; p-values need resamples={LEAST_RESAMPLES} or more"]
        which = f"{count} of {len(known)} class pairs are" if count > 1 else "1 class pair is"
        return [
            f"{which} not tested: too few examples per class. A p-value needs at least {LEAST_UNITS} sources of the "
            f"one class and {LEAST_UNITS} targets of the other with a value on both sides"
        ]

    @property
    def _in_root(self) -> str:
        """The medians of a measure that is quadratic in the change, as how far; "" for other measures."""
        if order_of(self.measure) == 1:
            return ""
        before, after = (percent(max(value, 0.0) ** (1 / order_of(self.measure))) for value in self._medians)
        return (
            f"; {with_unit(self.measure)} is quadratic in the change: √{self.measure} is {before} before and {after} "
            "after, as far as the source itself"
        )

    @property
    def _medians(self) -> tuple[float, float]:
        """Before and after, over the pairs that have a value on both sides."""
        before, after = self._values
        known = np.isfinite(after - before)
        return float(np.median(before[known])), float(np.median(after[known]))

    @property
    def _bootstrap(self) -> dict[str, Any]:
        return {"level": self.level, "resamples": self.resamples, "seed": self.seed}

    def plot(self, columns: int = 2) -> Figure:
        """The two matrices and their difference.

        Args:
            columns: 1 or 2, the width in columns of print.

        Returns:
            A matplotlib figure.
        """
        with extra("report"):
            from local_elasticity.report.figures import comparison_figure

        return comparison_figure(self.before, self.after, self.difference, columns)

    def sentences(self) -> list[str]:
        """What changed, and what to know about it.

        Returns:
            One sentence each.
        """
        n, m = self.after.shape
        found = self.overall
        if not found.pairs:
            return [f"{self.measure} of {n} × {m} pairs: none has a value on both sides", *self.notes]
        before, after = self._medians
        told = [
            f"{self.measure} of {n} × {m} pairs: median {before:.3g} before, {after:.3g} after{self._in_root}",
            f"median of the pairs' differences {found.difference:+.3g} ({self.level:.0%} interval {found.low:+.3g} to "
            f"{found.high:+.3g}; {self._tested}; {found.pairs} pairs)",
        ]
        if has_classes(self.after):
            told += [self._changed_classes, *self._untested_classes]
        rows = self.frame("pairs", top=TOLD).itertuples()
        named = [f"{row.source} → {row.target} {row.difference:+.3g}" for row in rows]
        told[2:2] = self._disagreement
        return [*told, f"pairs that changed most: {', '.join(named)}", *self.notes]


@overload
def compare(A: list[Any] | tuple[Any, ...], B: list[Any] | tuple[Any, ...], **options: Any) -> ComparedSeeds: ...


@overload
def compare(A: Any, B: Any, **options: Any) -> Compared: ...


def compare(
    A: Any,
    B: Any,
    *,
    sources: Any = None,
    targets: Any = None,
    measure: Any = None,
    update: Update = DEFAULT_UPDATE,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
    paired: bool = False,
    **options: Any,
) -> Compared | ComparedSeeds:
    """What changed from A to B: two similarities, two histories or two models, compared pair by pair; or two lists of
    them, one for each seed, compared seed by seed.

    Args:
        A, B: results of `le.similarity`; or histories or monitors, whose last probes are compared; or two problems or
            models, which are then measured at the same sources and targets. Two lists or tuples of these, of networks
            that were trained with two or more seeds each, are compared as two settings.
        sources, targets, update, options: for models, as for `le.similarity`; `le.SGD("auto")` takes the smallest of
            their steps for all.
        measure: for models, the measure, `"relative"` by default; for results and histories with several, which of
            them.
        level: of the intervals.
        resamples, seed: of the bootstrap intervals of two results, which resample sources and targets; examples that
            are both are drawn once. P-values are NaN below five sources or targets, of a pair of classes below five
            of either class. Lists need neither.
        paired: for lists, whether the two networks at each place share a seed; the differences of pairs are then
            tested, otherwise the means (Welch's t test).

    Returns:
        A `Compared`: `.frame(by)`, `.plot()`, `.difference`, `.overall`; printed, it tells what changed most. Of lists,
        a `ComparedSeeds`: `.frame(by)`, `.plot()`.

    Raises:
        ValueError, TypeError: if A and B are not of one kind, or of other examples or other measures.

    >>> import torch, local_elasticity as le
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 2
    >>> young, old = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    >>> found = le.compare(young, old, sources=(x, y), loss="cross_entropy", measure="kl")
    >>> found.frame().columns.tolist()
    ['source_class', 'target_class', 'before', 'after', 'difference', 'low', 'high', 'p_value', 'p_adjusted', 'pairs']
    >>> len(found.frame("pairs", top=5)), found.measure
    (5, 'kl')
    >>> small, large = ([torch.nn.Linear(4, 2) for seed in range(3)] for setting in range(2))
    >>> le.compare(small, large, sources=(x, y), loss="cross_entropy").frame("overall")["statistic"].tolist()
    ['times', 'within', 'between', 'median']
    """
    check_share("level", level)
    check_count("resamples", resamples, least=0)
    check_count("seed", seed, least=0)
    question = (sources, targets, measure, update, options)
    if isinstance(A, (list, tuple)) or isinstance(B, (list, tuple)):
        check_seeds(A, B, paired=paired)
        names = [f"{side}[{place}]" for side, several in (("A", A), ("B", B)) for place in range(len(several))]
        found = _similarities([*A, *B], names, *question)
        return compared_seeds(found[: len(A)], found[len(A) :], paired=paired, level=level)
    if paired:
        raise ValueError("paired: seeds are paired; pass two lists with one result for each seed")
    A, B = _similarities([A, B], ["A", "B"], *question)
    check_alike(A, B)
    return Compared(A, B, level, resamples, seed, tuple(other_circumstances(A, B)))


def _similarities(
    several: list[Any],
    names: list[str],
    sources: Any,
    targets: Any,
    measure: Any,
    update: Update,
    options: dict[str, Any],
) -> list[xr.DataArray]:
    """Each of them as a similarity: models are measured, results are read."""
    models = [isinstance(one, (nn.Module, Problem)) for one in several]
    if all(models):
        return measured(several, sources, targets, measure or "relative", update, options)
    if any(models):
        raise TypeError("A, B: one is a model and the other is not; pass models alone, or results alone")
    if sources is not None or targets is not None or options or update is not DEFAULT_UPDATE:
        raise TypeError("sources, targets, update: A and B are measured already; leave these out")
    return [as_one_similarity(one, name, measure) for one, name in zip(several, names, strict=True)]
