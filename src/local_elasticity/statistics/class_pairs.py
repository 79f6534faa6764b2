"""A similarity matrix in few numbers: one for every pair of classes, with its spread and the share left unresolved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from local_elasticity.checks import check_choice, check_share, class_labels
from local_elasticity.statistics.bootstrap import REDUCTIONS, Reduction, draws, quantiles, reduced
from local_elasticity.words import in_natural_order

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from numpy.typing import ArrayLike

SelfPairs = Literal["exclude", "include"]
ReadPairs = tuple[Any, np.ndarray, np.ndarray, np.ndarray | None, bool]
logger = logging.getLogger("local_elasticity")

MEANS = ("mean", "ratio_of_sums")
"""Reductions that a few pairs can dominate."""

HEAVY_TAIL = 1.0
"""Standard deviation of log S from which on intervals of means cover too seldom (docs/how-to/numbers.md)."""

ROWS_LOOKED_AT = 500
"""Sources from which the tails of a similarity are judged."""

MORE_RESOLVED = "try another step size, or measure in float64, problem.to(torch.float64)"
"""What to do about unresolved pairs where no cause is known."""

UNRESOLVED_WORTH_A_WARNING = 0.25
"""Share of the pairs of two classes."""


def class_pairs(
    S: ArrayLike,
    source_labels: ArrayLike | None = None,
    target_labels: ArrayLike | None = None,
    *,
    reduce: Reduction = "median",
    self_pairs: SelfPairs = "exclude",
    source_change: ArrayLike | None = None,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """The similarity of every pair of classes: a row each of source_class, target_class, value, low, high, pairs,
    unresolved.

    `value` is the reduction over the resolved pairs, `low` and `high` a bootstrap interval, `pairs` how many pairs
    entered, `unresolved` the share that had no value. The interval resamples sources and targets, since pairs that
    share one are not independent; where the targets are the sources, a resample has the same examples on both sides.
    Intervals of heavy-tailed means are too narrow, and a warning says so. One source
    that barely moved can dominate a mean of ratios, so the median is the default.
    Dan et al.'s smoothed S_rel (Definition 3) is `reduce="mean", self_pairs="include"`.

    Args:
        S: similarity, [n, m]: a tensor, an array, or the result of `le.similarity`, which brings its own labels.
        source_labels, target_labels: a class for each source and target; target_labels default to source_labels.
        reduce: `"median"`, `"mean"`, `"trimmed"` (mean without the outer tenths), or `"ratio_of_sums"`
            (Σ change at targets / Σ change at sources), which needs `source_change`.
        self_pairs: whether an example with itself counts. Those are the diagonal of a square S whose two label
            vectors are equal.
        source_change: how far each source itself moved, [n], the denominators of S.
        level, resamples, seed: of the bootstrap interval.

    Returns:
        A DataFrame with a row for every source class and target class.

    Raises:
        ValueError, TypeError: what is wrong with an argument; the message begins with its name.

    >>> import torch
    >>> S = torch.tensor([[1.0, 0.5, 0.1], [0.7, 1.0, 0.3], [0.2, 0.4, 1.0]])
    >>> print(class_pairs(S, ["cat", "cat", "dog"])[["source_class", "target_class", "value", "pairs"]])
      source_class target_class  value  pairs
    0          cat          cat    0.6      2
    1          cat          dog    0.2      2
    2          dog          cat    0.3      2
    3          dog          dog    NaN      0
    """
    read = read_pairs(S, source_labels, target_labels, source_change)
    frame = summarized(read, reduce, self_pairs, resamples, level=level, seed=seed)
    tell_of_unresolved(frame, "class_pairs", getattr(S, "attrs", {}).get("cause"))
    if resamples and reduce in MEANS:
        tell_of_heavy_tails(read[0], reduce)
    return frame


def summarized(
    read: ReadPairs, reduce: Reduction, self_pairs: SelfPairs, resamples: int, *, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """The frame of `class_pairs`, without warnings about unresolved pairs."""
    import pandas as pd

    names = ["source_class", "target_class", "value", "low", "high", "pairs", "unresolved"]
    return pd.DataFrame(pair_rows(read, reduce, self_pairs, resamples, level=level, seed=seed), columns=names)


def pair_rows(
    read: ReadPairs, reduce: Reduction, self_pairs: SelfPairs, resamples: int, *, level: float = 0.95, seed: int = 0
) -> list[tuple[Any, Any, float, float, float, int, float]]:
    """The rows of that frame: classes, value, low, high, pairs, the share unresolved. It needs NumPy alone."""
    values, rows, columns, weights, square = read
    _check(reduce, self_pairs, weights, level)
    rng = np.random.default_rng(seed)
    table, targets = [], in_natural_order(columns.tolist())
    for a in in_natural_order(rows.tolist()):
        i = np.flatnonzero(rows == a)
        strip = np.asarray(values[i])
        for b in targets:
            j = np.flatnonzero(columns == b)
            block, pairs = _block(strip[:, j], i, j, others_only=square and self_pairs == "exclude")
            resolved = int(np.isfinite(block).sum())
            drawn = draws(rng, block.shape, resamples if resolved else 0, square=square and a == b)
            found = reduced(block, reduce, None if weights is None else weights[i], *drawn)
            low, high = quantiles(found[1:], level)
            unresolved = 1 - resolved / pairs if pairs else np.nan
            table.append((a, b, float(found[0]), low, high, resolved, unresolved))
    return table


def tell_of_unresolved(frame: pd.DataFrame, what: str, cause: str | None = None) -> bool:
    """Warn where many pairs of two classes are unresolved, with the cause where it is known; whether there was reason
    to."""
    many = bool((frame["unresolved"] > UNRESOLVED_WORTH_A_WARNING).any())
    if many:
        logger.warning(
            "%s: up to %.0f %% of the pairs of two classes are unresolved and left out; the value is that of the "
            "others. %s",
            what,
            100 * frame["unresolved"].max(),
            f"The cause: {cause}" if cause else f"To resolve more, {MORE_RESOLVED}",
        )
    return many


def tell_of_heavy_tails(values: Any, reduce: Reduction) -> bool:
    """Warn where an interval of a mean is too narrow, because a few pairs make up the mean; whether there was reason
    to. The first rows of a large matrix will do.

    >>> import numpy as np
    >>> tell_of_heavy_tails(np.array([[1.0, 1.1], [0.9, 1.0]]), "mean")
    False
    """
    S = np.abs(np.asarray(values[:ROWS_LOOKED_AT], dtype=float))
    logs = np.log(S[np.isfinite(S) & (S > 0)])
    heavy = len(logs) > 1 and float(logs.std()) >= HEAVY_TAIL
    if heavy:
        logger.warning(
            'class_pairs: reduce="%s" of similarities over %.1f orders of magnitude: the 95 %% interval contains the '
            "true value less often, 60 to 90 %% of the time, because a few pairs make up the mean. "
            'reduce="median" has intervals that cover',
            reduce,
            float(np.ptp(np.quantile(logs, [0.025, 0.975]))) / np.log(10),
        )
    return heavy


def read_pairs(
    S: Any, source_labels: Any, target_labels: Any, source_change: Any = None, *, square: bool | None = None
) -> ReadPairs:
    """Values (not read yet where they are on disk), row labels, column labels, denominators, and whether the diagonal
    holds self-pairs; by default where the labels are the same.
    """
    if hasattr(S, "data_vars"):
        names = ", ".join(map(str, S.data_vars))
        raise TypeError(f"S: expected one similarity, got a Dataset of several measures; pass one of S[...]: {names}")
    if hasattr(S, "coords"):
        source_labels = carried(S, "source_class") if source_labels is None else source_labels
        target_labels = carried(S, "target_class") if target_labels is None else target_labels
        if source_labels is None or target_labels is None:
            raise ValueError(
                "source_labels, target_labels: this similarity carries no classes; give them here or to similarity()"
            )
        source_change = carried(S, "source_change") if source_change is None else source_change
        square = bool(S.attrs.get("targets_are_sources", False)) if square is None else square
    if source_labels is None:
        raise ValueError("source_labels: give a class for every source")
    values = S.variable if hasattr(S, "coords") else _array(S)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise ValueError(f"S: expected a matrix of real numbers, got {values.dtype} of shape {values.shape}")
    rows = class_labels("source_labels", source_labels, values.shape[0])
    columns = class_labels("target_labels", rows if target_labels is None else target_labels, values.shape[1])
    if square is None:
        square = len(rows) == len(columns) and bool((rows == columns).all())
    weights = None if source_change is None else _array(source_change).astype(float)
    return values, rows, columns, weights, square


def has_classes(S: xr.DataArray) -> bool:
    """Whether a similarity carries the classes of its sources and targets."""
    return {"source_class", "target_class"} <= set(S.coords)


def carried(S: xr.DataArray, name: str) -> np.ndarray | None:
    """A coordinate of a similarity, such as `"source_change"`, which has the measure's name appended in a Dataset."""
    names = name, f"{name}_{S.attrs.get('measure')}"
    return next((np.asarray(S[one].values) for one in names if one in S.coords), None)


def _check(reduce: Reduction, self_pairs: str, weights: np.ndarray | None, level: float) -> None:
    check_choice("reduce", reduce, REDUCTIONS)
    if reduce == "ratio_of_sums" and weights is None:
        raise ValueError(
            "source_change: ratio_of_sums needs the denominators, le.source_change(response), or a result of "
            "le.similarity, which carries them"
        )
    check_choice("self_pairs", self_pairs, ("exclude", "include"))
    check_share("level", level)


def _block(values: np.ndarray, i: np.ndarray, j: np.ndarray, *, others_only: bool) -> tuple[np.ndarray, int]:
    """The similarities of two classes, NaN where there is none, and how many pairs they are, with or without those of
    an example and itself.
    """
    block = values.astype(np.result_type(values.dtype, np.float32))
    block[~np.isfinite(block)] = np.nan
    if not others_only:
        return block, block.size
    both, row, column = np.intersect1d(i, j, return_indices=True)
    block[row, column] = np.nan
    return block, block.size - len(both)


def _array(values: Any) -> np.ndarray:
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()


def sampled_rows(classes: Sequence[Any], count: int) -> np.ndarray:
    """The places of `count` examples, balanced by class as far as possible, in order. A larger count adds others.

    >>> sampled_rows(["a", "a", "a", "b", "b", "c"], 4)
    array([0, 1, 3, 5])
    """
    seen: dict[str, int] = {}
    keys = []
    for place, one in enumerate(map(str, classes)):
        seen[one] = seen.get(one, -1) + 1
        keys.append((seen[one], place))
    return np.sort(np.array([place for _, place in sorted(keys)[:count]], dtype=int))
