"""compare: what changed between two moments or two models, pair by pair, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr
from torch import nn

from local_elasticity.api.printed import Printed
from local_elasticity.api.similarity import similarity
from local_elasticity.checks import check_choice, check_count, check_share
from local_elasticity.engine.problem import Problem, as_problem
from local_elasticity.engine.update import DEFAULT_UPDATE, SGD, Update
from local_elasticity.extras import extra
from local_elasticity.measurement import Measurement
from local_elasticity.measures.registry import as_measures
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

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

By = Literal["classes", "pairs", "sources", "targets"]
BY = ("classes", "pairs", "sources", "targets")

SAME_INPUTS = 1e-5
"""How far the sizes of inputs may differ that were read in two precisions."""

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
            return "no p-value without resamples"
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
        clear = known[known["p_adjusted"] < SIGNIFICANT]
        several = known if clear.empty else clear
        largest = several["difference"].abs().sort_values(ascending=False, kind="stable").index[:TOLD]
        rows: Any = several.loc[largest]
        named = ", ".join(f"{row.source_class} → {row.target_class} {row.difference:+.3g}" for row in rows.itertuples())
        if known["p_adjusted"].isna().all():
            return f"class pairs with the largest median differences, not tested: {named}"
        limit = f"p {'≥' if clear.empty else '<'} {SIGNIFICANT:g} after correction for {len(known)} class pairs"
        if clear.empty:
            return f"no class pair changed clearly ({limit}); largest median differences: {named}"
        return f"{len(clear)} class pairs changed clearly ({limit}); largest median differences: {named}"

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
        before, after = (np.where(np.isfinite(np.subtract(*self._values)), part, np.nan) for part in self._values)
        told = [
            f"{self.measure} of {n} × {m} pairs: median {np.nanmedian(before):.3g} before, {np.nanmedian(after):.3g} "
            f"after",
            f"median of the pairs' differences {found.difference:+.3g} ({self.level:.0%} interval {found.low:+.3g} to "
            f"{found.high:+.3g}; {self._tested}; {found.pairs} pairs)",
        ]
        if has_classes(self.after):
            told.append(self._changed_classes)
        rows = self.frame("pairs", top=TOLD).itertuples()
        named = [f"{row.source} → {row.target} {row.difference:+.3g}" for row in rows]
        told[2:2] = self._disagreement
        return [*told, f"pairs that changed most: {', '.join(named)}", *self.notes]


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
    **options: Any,
) -> Compared:
    """What changed from A to B: two similarities, two histories or two models, compared pair by pair.

    Args:
        A, B: results of `le.similarity`; or histories or monitors, whose last probes are compared; or two problems or
            models, which are then measured at the same sources and targets.
        sources, targets, update, options: for models, as for `le.similarity`; `le.SGD("auto")` takes the smaller of the
            two steps for both.
        measure: for models, the measure, `"relative"` by default; for results and histories with several, which of
            them.
        level, resamples, seed: of the bootstrap intervals, which resample sources and targets; examples that are both
            are drawn once. P-values are NaN below five sources or targets.

    Returns:
        A `Compared`: `.frame(by)`, `.plot()`, `.difference`, `.overall`; printed, it tells what changed most.

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
    """
    check_share("level", level)
    check_count("resamples", resamples, least=0)
    check_count("seed", seed, least=0)
    models = [isinstance(one, (nn.Module, Problem)) for one in (A, B)]
    if all(models):
        A, B = _measured(A, B, sources, targets, measure or "relative", update, options)
    elif any(models):
        raise TypeError("A, B: one is a model and the other is not; pass two models, or two results")
    elif sources is not None or targets is not None or options or update is not DEFAULT_UPDATE:
        raise TypeError("sources, targets, update: A and B are measured already; leave these out")
    else:
        A, B = (_as_similarity(one, name, measure) for one, name in ((A, "A"), (B, "B")))
    _check_alike(A, B)
    return Compared(A, B, level, resamples, seed, tuple(_other_circumstances(A, B)))


def _measured(
    A: Any, B: Any, sources: Any, targets: Any, measure: Any, update: Update, options: dict[str, Any]
) -> tuple[xr.DataArray, xr.DataArray]:
    if sources is None:
        raise ValueError("sources: two models are measured at the same examples; pass sources=(inputs, labels)")
    if isinstance(measure, (tuple, list)):
        raise ValueError("measure: expected one measure; call le.compare once for each of them")
    loss = options.pop("loss", None)
    problems = [one if isinstance(one, Problem) else as_problem(one, loss) for one in (A, B)]
    if isinstance(update, SGD) and update.automatic:
        measures = as_measures(measure)
        chosen = [Measurement.read(one, sources, targets, measures=measures, update=update) for one in problems]
        update = SGD(min(one.update.step_size for one in chosen), update.weight_decay)
    steps = {} if not as_measures(measure)[0].takes_steps and update is DEFAULT_UPDATE else {"update": update}
    one, other = (similarity(one, sources, targets, measure=measure, **steps, **options) for one in problems)
    return one, other


def _as_similarity(given: Any, name: str, measure: Any) -> xr.DataArray:
    """A similarity, or the last probe of a history or monitor as one."""
    given = getattr(given, "history", given)
    if isinstance(given, xr.Dataset):
        given = given[_chosen(list(map(str, given)), name, measure)]
    if isinstance(given, xr.DataArray):
        if given.dims != ("source", "target"):
            raise TypeError(f"{name}: expected a similarity [source, target], got an array of {given.dims}")
        _chosen([str(given.attrs.get("measure", given.name))], name, measure)
        return given
    if isinstance(given, (str, Path)):
        raise TypeError(
            f"{name}: expected a similarity, a history, a monitor or a model, got the path {str(given)!r}. Read a "
            "stored similarity with le.load(path); of two files of weights, load each into a model and pass both models"
        )
    if not (hasattr(given, "measures") and hasattr(given, "dataset")):
        raise TypeError(
            f"{name}: expected a similarity, a history, a monitor or a model, got {type(given).__name__}; "
            "le.as_similarity makes one of a matrix"
        )
    if not len(given):
        raise ValueError(f"{name}: this history has no probe yet")
    chosen = _chosen(list(given.measures), name, measure)
    last = given.dataset().isel(step=-1)
    found: xr.DataArray = last[chosen].drop_vars("seconds")
    found = found.assign_coords({axis: np.arange(found.sizes[axis]) for axis in ("source", "target")})
    found.attrs = {**given.about, "measure": chosen, "step": int(last["step"]), "provenance": given.provenance}
    return found


def _chosen(names: list[str], name: str, measure: Any) -> str:
    """Which of the measures that there are is meant: the one that is named, or the only one."""
    if measure is None and len(names) > 1:
        raise ValueError(f"measure: {name} has {', '.join(names)}; say which, such as {names[0]}")
    chosen = names[0] if measure is None and names else measure
    if chosen not in names:
        raise ValueError(f"measure: {name} has no {chosen!r}; it has {', '.join(names) or 'none of pairs'}")
    return str(chosen)


def _check_alike(A: xr.DataArray, B: xr.DataArray) -> None:
    """Raise a ValueError if two similarities are not of the same examples and the same measure."""
    one, other = (S.attrs.get("measure") for S in (A, B))
    if one != other:
        raise ValueError(f"A, B: two measures, {one} and {other}, have no common unit; compare the same measure")
    there, here = (S.attrs.get("provenance") or {} for S in (A, B))
    for name in ("sources", "labels", "targets", f"measure {one}"):
        if there.get(name, "") != here.get(name, "") and name in there and name in here:
            raise ValueError(f"A, B: they are of other {name}; compare the same measure of the same examples")
    sizes = [S.attrs.get("inputs") for S in (A, B)]
    if A.shape == B.shape and all(sizes) and not _nearly_equal(*sizes):
        raise ValueError("A, B: they are of other inputs; compare the same measure of the same examples")
    if A.shape != B.shape:
        raise ValueError(f"A, B: {A.shape} and {B.shape} pairs; compare similarities of the same sources and targets")
    if bool(A.attrs.get("targets_are_sources")) != bool(B.attrs.get("targets_are_sources")):
        raise ValueError("A, B: the targets are the sources on one side only; compare the same sources and targets")
    for name in ("source", "target", "source_class", "target_class", "source_example", "target_example"):
        if name in A.coords and name in B.coords and not np.array_equal(A[name].values, B[name].values):
            place = int(np.flatnonzero(A[name].values != B[name].values)[0])
            what = name.replace("_", " ").replace("class", "classes").replace("example", "examples")
            what = f"{what}s" if what == name else what
            raise ValueError(f"A, B: they are of other examples: {what} differ first at place {place}")


def _nearly_equal(one: Any, other: Any) -> bool:
    """Whether inputs are the same up to the precision that they were read in."""
    one, other = (np.asarray(sizes, dtype=float) for sizes in (one, other))
    scale = np.abs(one).max(initial=0.0)
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=SAME_INPUTS, atol=SAME_INPUTS * scale))


def _other_circumstances(A: xr.DataArray, B: xr.DataArray) -> list[str]:
    """What else differs that a difference may come from."""
    names = [name for name in ("update", "loss", "policy") if A.attrs.get(name) != B.attrs.get(name)]
    said = [f"the two were measured with another {name}: {A.attrs.get(name)} and {B.attrs.get(name)}" for name in names]
    limits = [_is_limit(S) for S in (A, B)]
    return said + (["one is the limit for small steps, the other exact"] if limits[0] != limits[1] else [])


def _is_limit(S: xr.DataArray) -> bool:
    response = (S.attrs.get("provenance") or {}).get("response", "")
    return S.attrs.get("engine") == "linearized" or response.startswith("its limit")
