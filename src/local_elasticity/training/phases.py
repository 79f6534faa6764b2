"""Elastic phases: how local learning is, when half of the change had happened, and whether there are two phases.

Dan et al. (Hypothesis 1.2) describe training as two phases, one in which S_rel changes fast and one in which it stays.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.statistics.change_point import FEWEST, change_point, half_life, last_quarter, log_of
from local_elasticity.statistics.class_pairs import ReadPairs, summarized
from local_elasticity.statistics.locality import locality as locality_of

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("local_elasticity")

PAIRS_LOGGED = 25
"""The most pairs of classes that are logged one by one."""


def locality(frame: pd.DataFrame) -> pd.DataFrame:
    """Deprecated: `monitor.locality()` gives every pair of examples the same weight. This one takes medians of the
    classes' medians, which one class can dominate.

    >>> import pandas as pd, warnings
    >>> rows = [(0, "kl", "a", "a", 0.8), (0, "kl", "a", "b", 0.2), (0, "kl", "b", "b", 0.4), (0, "kl", "b", "a", 0.4)]
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     locality(pd.DataFrame(rows, columns=["step", "measure", "source_class", "target_class", "value"]))
       step measure  intra  inter  ratio
    0     0      kl    0.6    0.3    0.5
    """
    warnings.warn(
        "le.training.locality(frame) is deprecated; use monitor.locality(), history.locality() or le.locality(S)",
        DeprecationWarning,
        stacklevel=2,
    )
    same = frame.source_class.astype(str) == frame.target_class.astype(str)
    keys = [frame.step, frame.measure]
    intra = frame.value.where(same).groupby(keys, sort=False).median()
    inter = frame.value.where(~same).groupby(keys, sort=False).median()
    table = intra.rename("intra").to_frame().assign(inter=inter, ratio=inter / intra)
    return table.reset_index()


def phases(table: pd.DataFrame) -> pd.DataFrame:
    """One row for every measure of `history.locality()`: how many times as far a step moves its own class, first and
    late, the half-life of this curve, and its change-point.

    The half-life is the step by which half of the change has happened, and the change-point is that of the logarithm,
    both as on the page. A table without `times` is described by its ratio. Where there is one class only there is
    neither, and the value within it is described. From fewer than four values only the first is given; the rest is NaN,
    and a warning is logged.
    """
    import pandas as pd

    names = ["measure", "of", "first", "late", "half_life", "change_step", "before", "after", "p_value"]
    rows, few = [], {}
    for measure, part in table.groupby("measure", sort=False):
        what = _described(part)
        steps, values = part.step.to_numpy(float), part[what].to_numpy(float)
        is_level = what == "within"
        found, back = change_point(steps, values if is_level else log_of(values)), float if is_level else np.exp
        known = values[np.isfinite(values)]
        first = known[0] if len(known) else np.nan
        if len(known) < FEWEST:
            few[str(measure)] = len(known)
            rows.append((measure, what, first, *[np.nan] * 6))
            continue
        late = float(np.median(last_quarter(known)))
        change = found.step, float(back(found.before)), float(back(found.after)), found.p_value
        rows.append((measure, what, first, late, half_life(steps, values), *change))
    if few:
        told = ", ".join(f"{name} has {count}" for name, count in few.items())
        logger.warning("phases: nothing is concluded from fewer than %d probes with a value; %s", FEWEST, told)
    return pd.DataFrame(rows, columns=names)


def _described(part: pd.DataFrame) -> str:
    """The column that phases are those of."""
    for name in ("times", "ratio"):
        if name in part and part[name].notna().any():
            return name
    return "within"


def logged_values(measured: Mapping[str, ReadPairs]) -> dict[str, float]:
    """What goes to loggers: medians of class pairs where they are few, within and between classes, and their ratio."""
    values: dict[str, float] = {}
    for name, read in measured.items():
        table = summarized(read, "median", "exclude", resamples=0)
        if len(table) <= PAIRS_LOGGED:
            each = zip(table.source_class, table.target_class, table.value, strict=True)
            values |= {f"local_elasticity/{name}/{a}-{b}": float(value) for a, b, value in each}
        found = locality_of(read, resamples=0, permutations=0)
        of_all = {"intra": found.within, "inter": found.between, "ratio": found.ratio}
        values |= {f"local_elasticity/{name}/{what}": value for what, value in of_all.items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}
