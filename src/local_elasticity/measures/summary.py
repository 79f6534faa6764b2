"""A similarity matrix in few numbers: one for every pair of classes, with its spread and the share left unresolved."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    import pandas as pd

Reduction = Literal["median", "mean", "trimmed", "ratio_of_sums"]
logger = logging.getLogger("local_elasticity")

UNRESOLVED_WORTH_A_WARNING = 0.25
"""Share of the pairs of two classes."""

TRIMMED_SHARE = 0.1
"""`trimmed` leaves out this share of the pairs at either end."""

NUMBERS_AT_ONCE = 10**7
"""Resampled similarities that are held at a time."""

Reduce = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


def class_pairs(
    S: Any,
    source_labels: Any = None,
    target_labels: Any = None,
    *,
    reduce: Reduction = "median",
    self_pairs: Literal["exclude", "include"] = "exclude",
    source_change: Any = None,
    level: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """The similarity of every pair of classes: a row each of source_class, target_class, value, low, high, pairs,
    unresolved.

    `value` is the reduction over the resolved pairs, `low` and `high` a bootstrap interval (sources and targets are
    resampled, since pairs that share one are not independent), `pairs` how many pairs entered, `unresolved` the share
    that had no value. Means of ratios are ruled by the one source that barely moved, so the median is the default.
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

    >>> import torch
    >>> S = torch.tensor([[1.0, 0.5, 0.1], [0.7, 1.0, 0.3], [0.2, 0.4, 1.0]])
    >>> print(class_pairs(S, ["cat", "cat", "dog"])[["source_class", "target_class", "value", "pairs"]])
      source_class target_class  value  pairs
    0          cat          cat    0.6      2
    1          cat          dog    0.2      2
    2          dog          cat    0.3      2
    3          dog          dog    NaN      0
    """
    import pandas as pd

    values, rows, columns, weights, square = _read(S, source_labels, target_labels, source_change)
    reduction = _reduction(reduce, weights)
    if self_pairs not in ("exclude", "include"):
        raise ValueError(f'self_pairs: "exclude" or "include", not {self_pairs!r}')
    if not 0 < level < 1:
        raise ValueError(f"level: a share between 0 and 1 is wanted, such as 0.95, not {level!r}")
    counted = np.ones_like(values, dtype=bool)
    if square and self_pairs == "exclude":
        np.fill_diagonal(counted, False)
    rng = np.random.default_rng(seed)
    table = []
    for a in np.unique(rows):
        for b in np.unique(columns):
            i, j = np.flatnonzero(rows == a), np.flatnonzero(columns == b)
            pairs = counted[np.ix_(i, j)]
            block = np.where(pairs, values[np.ix_(i, j)], np.nan)
            weight = None if weights is None else weights[i]
            low, high = _interval(block, weight, reduction, level, resamples, rng)
            resolved = int(np.isfinite(block).sum())
            unresolved = 1 - resolved / pairs.sum() if pairs.any() else np.nan
            value = float(reduction(block[None], weight)[0])
            table.append((_plain(a), _plain(b), value, low, high, resolved, unresolved))
    names = ["source_class", "target_class", "value", "low", "high", "pairs", "unresolved"]
    frame = pd.DataFrame(table, columns=names)
    if (frame["unresolved"] > UNRESOLVED_WORTH_A_WARNING).any():
        logger.warning(
            "class_pairs: up to %.0f %% of the pairs of two classes are unresolved and left out; the value is that of "
            "the others. A larger step, float64 or Structured resolves more",
            100 * frame["unresolved"].max(),
        )
    return frame


def _read(
    S: Any, source_labels: Any, target_labels: Any, source_change: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, bool]:
    """Values, row labels, column labels, denominators, and whether the diagonal holds self-pairs."""
    square = None
    if hasattr(S, "coords"):
        source_labels = S["source_class"].values if source_labels is None else source_labels
        target_labels = S["target_class"].values if target_labels is None else target_labels
        if source_change is None and "source_change" in S.coords:
            source_change = S["source_change"].values
        square = bool(S.attrs.get("targets_are_sources", False))
    if source_labels is None:
        raise ValueError("source_labels: give a class for every source")
    values, rows = _array(S).astype(float), _array(source_labels)
    columns = rows if target_labels is None else _array(target_labels)
    if values.shape != (len(rows), len(columns)):
        raise ValueError(
            f"source_labels, target_labels: {len(rows)} and {len(columns)} labels do not fit S of shape {values.shape}"
        )
    if square is None:
        square = len(rows) == len(columns) and bool((rows == columns).all())
    weights = None if source_change is None else _array(source_change).astype(float)
    return np.where(np.isfinite(values), values, np.nan), rows, columns, weights, square


def _reduction(reduce: Reduction, weights: np.ndarray | None) -> Reduce:
    if reduce not in _REDUCTIONS:
        raise ValueError(f"reduce: {reduce!r} is not one of {', '.join(_REDUCTIONS)}")
    if reduce == "ratio_of_sums" and weights is None:
        raise ValueError(
            "source_change: ratio_of_sums needs the denominators, le.source_change(response), or a result of "
            "le.similarity, which carries them"
        )
    return _REDUCTIONS[reduce]


def _median(blocks: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    return _quietly(np.nanmedian, blocks)


def _mean(blocks: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    return _quietly(np.nanmean, blocks)


def _trimmed(blocks: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    flat = np.sort(blocks.reshape(len(blocks), -1), axis=1)
    count = np.isfinite(flat).sum(1, keepdims=True)
    cut = np.floor(TRIMMED_SHARE * count)
    place = np.arange(flat.shape[1])
    kept = np.where((place >= cut) & (place < count - cut), flat, np.nan)
    return _quietly(np.nanmean, kept[:, None])


def _ratio_of_sums(blocks: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    assert weight is not None
    below = np.where(np.isfinite(blocks), weight[..., None], 0.0).sum((-2, -1))
    above = np.nansum(blocks * weight[..., None], axis=(-2, -1))
    ratio: np.ndarray = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
    return ratio


_REDUCTIONS: dict[str, Reduce] = {
    "median": _median,
    "mean": _mean,
    "trimmed": _trimmed,
    "ratio_of_sums": _ratio_of_sums,
}


def _interval(
    block: np.ndarray,
    weight: np.ndarray | None,
    reduction: Reduce,
    level: float,
    resamples: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Percentiles of the reduction over resampled sources and targets."""
    if not np.isfinite(block).any() or resamples < 1:
        return np.nan, np.nan
    n, m = block.shape
    draws = [(rng.integers(n, size=n), rng.integers(m, size=m)) for _ in range(resamples)]
    at_once = max(1, NUMBERS_AT_ONCE // block.size)
    parts = []
    for start in range(0, resamples, at_once):
        i, j = (np.stack(part) for part in zip(*draws[start : start + at_once], strict=True))
        parts.append(reduction(block[i[:, :, None], j[:, None, :]], None if weight is None else weight[i]))
    low, high = np.nanquantile(np.concatenate(parts), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _quietly(function: Callable[..., np.ndarray], blocks: np.ndarray) -> np.ndarray:
    """A NaN-aware function over the last two axes, NaN where there is nothing, without a warning."""
    result = np.full(len(blocks), np.nan)
    some = np.isfinite(blocks).any((-2, -1))
    result[some] = function(blocks[some], axis=(-2, -1))
    return result


def _array(values: Any) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
