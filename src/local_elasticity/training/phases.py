"""Elastic phases: how local learning is, when half of that has come about, and whether there are two phases at all.

Dan et al. (Hypothesis 1.2) describe training as two phases, one in which S_rel changes fast and one in which it stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from local_elasticity.training.drift import drift_p_value

if TYPE_CHECKING:
    import pandas as pd

Series = Sequence[float] | np.ndarray

LATE = 0.25
"""The last share of the probes, whose median stands for the end of training."""

PAIRS_LOGGED = 25
"""Up to so many pairs of classes are logged one by one."""


@dataclass(frozen=True)
class ChangePoint:
    """Where a series changes its level: the first step of the new level, both levels, a test against a drift."""

    step: float
    before: float
    after: float
    p_value: float


def locality(frame: pd.DataFrame) -> pd.DataFrame:
    """The locality ratio inter/intra at every step, for every measure.

    The median over pairs of different classes divided by the median over classes with themselves: 1 where a step on
    one example moves all classes alike, 0 where it moves its own class alone. (Means would be ruled by a class whose
    steps hardly move itself.) The explorable page has all pairs at hand and takes the medians over those, so that its
    ratio differs where classes do.

    >>> import pandas as pd
    >>> rows = [(0, "kl", "a", "a", 0.8), (0, "kl", "a", "b", 0.2), (0, "kl", "b", "b", 0.4), (0, "kl", "b", "a", 0.4)]
    >>> locality(pd.DataFrame(rows, columns=["step", "measure", "source_class", "target_class", "value"]))
       step measure  intra  inter  ratio
    0     0      kl    0.6    0.3    0.5
    """
    same = frame.source_class.astype(str) == frame.target_class.astype(str)
    keys = [frame.step, frame.measure]
    intra = frame.value.where(same).groupby(keys, sort=False).median()
    inter = frame.value.where(~same).groupby(keys, sort=False).median()
    table = intra.rename("intra").to_frame().assign(inter=inter, ratio=inter / intra)
    return table.reset_index()


def half_life(steps: Series, values: Series) -> float:
    """The step at which half of the way from the first value to the late level is gone, interpolated.

    The late level is the median of the last quarter. NaN where there is no way to go.

    >>> half_life([0, 10, 20, 30, 40], [1.0, 0.6, 0.4, 0.2, 0.2])
    10.0
    """
    t, v = _finite(steps, values)
    if len(v) < 2:
        return float("nan")
    start, end = v[0], float(np.median(v[-max(1, round(LATE * len(v))) :]))
    if start == end:
        return float("nan")
    gone = (v - start) / (end - start)
    reached = np.flatnonzero(gone >= 0.5)
    if not len(reached):
        return float("nan")
    i = int(reached[0])
    share = (0.5 - gone[i - 1]) / (gone[i] - gone[i - 1])
    return float(t[i - 1] + share * (t[i] - t[i - 1]))


def change_point(
    steps: Series, values: Series, *, resamples: int = 499, seed: int = 0, shortest: int = 3
) -> ChangePoint:
    """The two levels that describe a series best, and how often a steady drift would look as much like two phases.

    The cut is where two levels explain most of the variance. `p_value` tests a jump or a kink, wherever it fits best,
    against a straight line in `steps` whose noise remembers itself from probe to probe (`drift_p_value`): small for a
    jump and for a decay that comes to rest, and seldom for a slope or for noise that wanders.

    Args:
        shortest: the least number of probes in a phase.

    >>> change_point(range(12), [1.0, 1.1, 0.9, 1.0, 0.3, 0.2, 0.3, 0.25, 0.3, 0.2, 0.25, 0.3]).step
    4.0
    """
    t, v = _finite(steps, values)
    if len(v) < 2 * shortest or np.ptp(v) == 0:
        return ChangePoint(float("nan"), float("nan"), float("nan"), 1.0)
    i = _best_cut(v, shortest)
    p_value = drift_p_value(t, v, shortest=shortest, resamples=resamples, seed=seed)
    return ChangePoint(float(t[i]), float(v[:i].mean()), float(v[i:].mean()), p_value)


def phases(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for every measure: the locality ratio first and late, its half-life, and its change-point.

    Where there is one class only there is no ratio, and the intra-class value itself is described.
    """
    import pandas as pd

    names = ["measure", "of", "first", "late", "half_life", "change_step", "before", "after", "p_value"]
    rows = []
    for measure, part in locality(frame).groupby("measure", sort=False):
        what = "ratio" if part.ratio.notna().any() else "intra"
        steps, values = part.step.to_numpy(float), part[what].to_numpy(float)
        found = change_point(steps, values)
        known = values[np.isfinite(values)]
        late = float(np.median(known[-max(1, round(LATE * len(known))) :])) if len(known) else np.nan
        first = known[0] if len(known) else np.nan
        change = found.step, found.before, found.after, found.p_value
        rows.append((measure, what, first, late, half_life(steps, values), *change))
    return pd.DataFrame(rows, columns=names)


def logged_values(
    similarity: Mapping[str, np.ndarray], source_classes: Sequence[Any], target_classes: Sequence[Any], *, square: bool
) -> dict[str, float]:
    """What goes to loggers: medians of class pairs where they are few, within and between classes, and their ratio."""
    from local_elasticity.measures.summary import read_pairs, summarized

    values: dict[str, float] = {}
    for name, S in similarity.items():
        pairs = read_pairs(S, source_classes, target_classes)
        table = summarized(pairs, "median", "exclude" if square else "include", resamples=0)
        table = table.assign(step=0, measure=name)
        if len(table) <= PAIRS_LOGGED:
            each = zip(table.source_class, table.target_class, table.value, strict=True)
            values |= {f"local_elasticity/{name}/{a}-{b}": float(value) for a, b, value in each}
        ratio = locality(table).iloc[0]
        values |= {f"local_elasticity/{name}/{what}": float(ratio[what]) for what in ("intra", "inter", "ratio")}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def _finite(steps: Series, values: Series) -> tuple[np.ndarray, np.ndarray]:
    t, v = np.asarray(list(steps), dtype=float), np.asarray(list(values), dtype=float)
    if t.shape != v.shape:
        raise ValueError(f"steps, values: {len(t)} steps do not fit {len(v)} values; give one for each")
    known = np.isfinite(v)
    return t[known], v[known]


def _best_cut(values: np.ndarray, shortest: int) -> int:
    """Where the second of the two levels that explain most of the variance begins."""
    n = len(values)
    cuts = np.arange(shortest, n - shortest + 1)
    sums = (values - values.mean()).cumsum()[cuts - 1]
    return int(cuts[(sums**2 * (1 / cuts + 1 / (n - cuts))).argmax()])
