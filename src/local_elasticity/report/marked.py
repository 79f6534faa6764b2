"""Texts with a mark on each token: how a step changed its log-probability, for the pairs where that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    import pandas as pd

ATTRIBUTE = "token_changes"
"""What a similarity carries them under."""

COLUMNS = ("source", "target", "place", "token", "change")


@dataclass(frozen=True)
class Marked:
    """The tokens of a target, and the change of each one's log-probability under a step on the source; None where it
    is not predicted or not resolved."""

    source: int
    target: int
    tokens: list[str]
    changes: list[float | None]


def as_attribute(changes: pd.DataFrame, S: xr.DataArray) -> list[dict[str, Any]]:
    """The rows of `token_changes` as an attribute of S: one entry for each pair."""
    missing = [name for name in COLUMNS if name not in changes]
    if missing:
        raise ValueError(f"changes: expected the columns {', '.join(COLUMNS)} of token_changes, got no {missing[0]}")
    found = []
    pairs: Any = changes.groupby(["source", "target"], sort=False)
    for (source, target), rows in pairs:
        if source not in S.source.values or target not in S.target.values:
            raise ValueError(f"changes: ({source}, {target}) is not a pair of this similarity")
        rows = rows.sort_values("place")
        values = [float(one) if np.isfinite(one) else None for one in rows["change"].astype(float)]
        found.append(asdict(Marked(int(source), int(target), [str(one) for one in rows["token"]], values)))
    return found


def read_marked(attrs: Mapping[Any, Any]) -> tuple[Marked, ...]:
    """The pairs that a similarity carries; a ValueError if they are not what `as_attribute` wrote."""
    try:
        found = tuple(_read(one) for one in attrs.get(ATTRIBUTE, ()))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"its {ATTRIBUTE} cannot be read ({error})") from error
    return found


def _read(one: Mapping[str, Any]) -> Marked:
    tokens = [str(token) for token in one["tokens"]]
    changes = [None if change is None or not np.isfinite(change) else float(change) for change in one["changes"]]
    if len(tokens) != len(changes):
        raise ValueError(f"{len(tokens)} tokens, {len(changes)} changes")
    return Marked(int(one["source"]), int(one["target"]), tokens, changes)
