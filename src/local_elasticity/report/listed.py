"""Helpers and harmers: of each target the sources whose step lowers or raises its loss most, among all sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from local_elasticity.measures.loss import LOSS
from local_elasticity.report.run import HelpersAndHarmers, Run, Side

LONGEST_LIST = 10
"""Helpers, and harmers, of a target."""

LISTED_EXAMPLES = 500
"""Examples that are kept for the sources of the lists."""

ROWS_AT_ONCE = 2048


def with_listed(run: Run) -> Run:
    """The same with the lists of its changes of the loss at the last time."""

    def listed(values: np.ndarray) -> HelpersAndHarmers:
        return listed_in(lambda rows: np.asarray(values[rows]), values.shape, run.sources, square=run.square)

    panels = tuple(
        replace(panel, listed=listed(panel.values[-1]))
        if panel.measure == LOSS.name and panel.listed is None and panel.values.size
        else panel
        for panel in run.panels
    )
    return replace(run, panels=panels)


def listed_in(
    read: Callable[[slice], np.ndarray],
    shape: tuple[int, ...],
    sources: Side,
    *,
    square: bool,
    columns: np.ndarray | None = None,
) -> HelpersAndHarmers:
    """The lists of all targets, from a matrix that is read a few rows at a time.

    Args:
        read: gives rows [c, m].
        shape: (n, m) of all that is read.
        sources: those of the rows.
        square: whether column `columns[j]` (by default j) is the example of that row, which is then left out.
    """
    n, m = shape
    columns = np.arange(m) if columns is None else columns
    rows, values, counts = np.full((2, 0, m), -1), np.zeros((2, 0, m)), np.zeros((2, m), dtype=int)
    for start in range(0, n, ROWS_AT_ONCE):
        block = np.array(read(slice(start, min(n, start + ROWS_AT_ONCE))), dtype=float)
        here = np.arange(start, start + len(block))
        if square:
            block[here[:, None] == columns] = np.nan
        counts += np.array([(block < 0).sum(0), (block > 0).sum(0)])
        signed = np.stack([np.where(block < 0, block, 0), -np.where(block > 0, block, 0)])  # the strongest are smallest
        signed = np.nan_to_num(signed, nan=0.0)
        values = np.concatenate([values, signed], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(here[:, None], signed.shape)], axis=1)
        order = np.argsort(values, axis=1, kind="stable")[:, :LONGEST_LIST]
        values, rows = (np.take_along_axis(part, order, axis=1) for part in (values, rows))
    rows = np.where(values < 0, rows, -1)
    return HelpersAndHarmers(sources, rows, values * np.array([1, -1])[:, None, None], counts)


def as_payload(listed: HelpersAndHarmers, side: Callable[[Side], dict[str, Any]]) -> dict[str, Any]:
    """What the page's JavaScript reads: the sources that are listed, and for each target [source, value] pairs. `side`
    writes a side."""
    used = listed.used
    strength = np.zeros(len(used))
    at = np.searchsorted(used, listed.rows)
    np.maximum.at(strength, at[listed.rows >= 0], np.abs(listed.values[listed.rows >= 0]))
    few = listed.sources.chosen(used)
    if few.examples is not None:
        kept = set(np.argsort(-strength, kind="stable")[:LISTED_EXAMPLES].tolist())
        few = replace(few, examples=[one if k in kept else "" for k, one in enumerate(few.examples)])

    def of_targets(end: int) -> list[list[tuple[int, float]]]:
        lists = zip(listed.rows[end].T, at[end].T, listed.values[end].T, strict=True)
        return [[(int(k), float(value)) for row, k, value in zip(*one, strict=True) if row >= 0] for one in lists]

    return {"sources": side(few), "helps": of_targets(0), "harms": of_targets(1)}
