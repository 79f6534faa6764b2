"""What the page's own JavaScript reads: numbers packed by gzip into text, and everything else as JSON."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import numpy as np

from local_elasticity.measures.registry import is_ratio
from local_elasticity.report.distance import distance_correlation, dots
from local_elasticity.report.embedding import Matched, Places, principal_places
from local_elasticity.report.front import Front
from local_elasticity.report.listed import as_payload
from local_elasticity.report.pairs import Pairs
from local_elasticity.report.run import Panel, Run, Side, as_text, in_order, shown
from local_elasticity.statistics.locality import quartiles

COARSE_SIDE = 100
"""Blocks on a side of a matrix whose single pairs are not kept."""

PAIRS_SHOWN = 20
"""With up to so many classes every pair has its curve; with more, only within and between classes."""


class Pack:
    """Collects arrays; each becomes a block of text in the page."""

    def __init__(self) -> None:
        self.blocks: list[str] = []

    def add(self, values: np.ndarray) -> int:
        """The number of the block that holds the values as float32."""
        self.blocks.append(packed(np.ascontiguousarray(values, dtype="<f4").tobytes()))
        return len(self.blocks) - 1


def packed(data: bytes) -> str:
    """gzip in base64, the same for the same data."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def as_json(content: Any) -> bytes:
    """JSON without NaN, which JSON does not know: null instead; and without halves of characters."""
    return as_text(json.dumps(_plain(content), ensure_ascii=False, allow_nan=False, separators=(",", ":"))).encode()


def run_payload(
    run: Run,
    pack: Pack,
    exact: int,
    *,
    pairs: list[Pairs | None],
    fronts: list[Front],
    match: Matched | None,
) -> dict[str, Any]:
    """One run, with as many exact matrices as `exact` numbers allow."""
    sources = _side(run.sources)
    panels = [
        _panel(run, panel, pack, exact // len(run.panels), pair, front)
        for panel, pair, front in zip(run.panels, pairs, fronts, strict=True)
    ]
    return {
        "name": shown(run.name),
        "kind": run.kind,
        "square": run.square,
        "sources": sources,
        "targets": sources if run.square else _side(run.targets),
        "panels": panels,
        "numbers": [{"name": shown(name), "values": values} for name, values in run.numbers.items()],
        "state": {shown(name): values for name, values in run.state.items()},
        "scatter": None if (pairs_of_dots := dots(run)) is None else vars(pairs_of_dots),
        "marked": [vars(one) for one in run.marked],
        "match": None if match is None else {"names": match.names, "wrong": match.wrong, "accuracy": match.accuracy},
    }


def blocks(values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Medians of the known numbers in at most COARSE_SIDE × COARSE_SIDE blocks of neighbours in the given orders.

    >>> blocks(np.arange(4.0).reshape(2, 2), np.array([1, 0]), np.array([0, 1])).tolist()
    [[2.0, 3.0], [0.0, 1.0]]
    """
    i, j = _grouped(rows), _grouped(columns)
    padded = np.full((values.shape[0] + 1, values.shape[1] + 1), np.nan, dtype=np.float32)
    padded[:-1, :-1] = np.where(np.isfinite(values), values, np.nan)
    parts = padded[i[:, :, None, None], j].swapaxes(1, 2).reshape(len(i) * len(j), -1)
    return np.asarray(quartiles(parts)[1]).reshape(len(i), len(j))


def _grouped(order: np.ndarray) -> np.ndarray:
    """At most COARSE_SIDE rows of neighbours, [parts, longest]; −1 fills the shorter ones."""
    groups = np.array_split(order, edges(len(order))[1:])
    found = np.full((len(groups), max(map(len, groups))), -1)
    for place, group in enumerate(groups):
        found[place, : len(group)] = group
    return found


def edges(size: int) -> np.ndarray:
    """Where the blocks of neighbours begin.

    >>> edges(3).tolist()
    [0, 1, 2]
    """
    parts = min(size, COARSE_SIDE)
    return np.unique(np.arange(parts) * size // parts)


def by_class(side: Side) -> np.ndarray:
    """The order of the examples by class, their own order within."""
    if side.classes is None:
        return np.arange(len(side))
    names = [shown(label) for label in side.classes]
    rank = {name: place for place, name in enumerate(in_order(names))}
    return np.argsort([rank[name] for name in names], kind="stable")


def _panel(run: Run, panel: Panel, pack: Pack, exact: int, pairs: Pairs | None, front: Front) -> dict[str, Any]:
    _, n, m = panel.values.shape
    title, order = shown(panel.title or panel.measure), front.order if front.kind == "ratio" else 1
    panel = replace(panel, values=as_far(panel.values, order))
    whole = exact_places(panel, front, max(1, exact // max(1, n * m)))
    rows, columns = by_class(run.sources), by_class(run.targets)
    matrices: list[dict[str, Any]] = []
    for place, S in enumerate(panel.values):
        if place in whole:
            matrices.append({"block": pack.add(S), "exact": True})
        else:
            medians = blocks(S, rows, columns)
            matrices.append({"block": pack.add(_rounded(medians)), "exact": False, "shape": medians.shape})
    return {
        "measure": shown(panel.measure),
        "title": f"√{title}" if order == 2 else title,
        "kind": front.kind,
        "steps": list(panel.steps),
        "matrices": matrices,
        "scale": colour_scale(panel, front.kind),
        "own": panel.own,
        "listed": None if panel.listed is None or len(panel.listed.sources) == n else as_payload(panel.listed, _side),
        "pairs": _pairs(pairs, order),
        "front": {"named": vars(front.named), "curve": front.curve, "brief": vars(front.brief)},
        "places": {place: _places(principal_places(panel.values[place])) for place in whole} if run.square else None,
        "correlations": {place: distance_correlation(run, panel.values[place]) for place in whole},
    }


def as_far(values: np.ndarray, order: int) -> np.ndarray:
    """How far, whatever the order of a measure: KL is quadratic in a change, so the page shows its root.

    >>> as_far(np.array([0.25, 0.0]), 2).tolist()
    [0.5, 0.0]
    """
    return values if order == 1 else np.sign(values) * np.abs(values) ** (1 / order)


def exact_places(panel: Panel, front: Front, keep: int) -> list[int]:
    """Which matrices are kept exactly: the last, the first, those at the change point, then the later ones."""
    last = len(panel.values) - 1
    curve = front.curve or {}
    marked = {step for name in ("change", "steepest") for step in curve.get(name) or ()}
    at = [place for place, step in enumerate(panel.steps) if step in marked]
    order = dict.fromkeys([last, 0, *at, *range(last, -1, -1)])
    return sorted(list(order)[:keep])


def colour_scale(panel: Panel, kind: str) -> dict[str, Any]:
    """One scale for all times. Ratios have logarithmic colours with an anchor at 1, as far as the source itself; where
    there are signs, colours reach as far below 0 as above. Two in a hundred pairs lie beyond either end, and the scale
    marks that.

    >>> colour_scale(Panel("kernel", np.array([[[-2.0, 2.0]]])), "signed")["low"]
    -2.0
    >>> colour_scale(Panel("kl", np.array([[[0.2, 0.5, 0.9]]])), "ratio")["high"]
    1.0
    """
    few = panel.values.reshape(len(panel.values), -1)
    few = few[:, :: max(1, panel.values.size // 10**6)]
    known = few[np.isfinite(few)]
    if kind == "ratio":
        ends = [np.quantile(above, [0.02, 0.98]) for one in few if len(above := one[np.isfinite(one) & (one > 0)])]
        low, high = min([0.5, *(one[0] for one in ends)]), max([1.0, *(one[1] for one in ends)])
    else:
        high = float(np.quantile(np.abs(known), 0.98)) if len(known) else 1.0
        high = high or 1.0
        low = -high if len(known) and known.min() < 0 else 0.0
    low, high = float(low), float(high)
    beyond = float(((known < low) | (known > high)).mean()) if len(known) else 0.0
    return {"log": kind == "ratio", "percent": kind == "ratio", "low": low, "high": high, "beyond": beyond}


def colour_range(panel: Panel) -> tuple[float, float]:
    """The ends of linear colours, for a small picture: to the 98th percentile, from 0 or as far below as above. A few
    extreme ratios would leave the rest dark, so theirs ends at 1 or the 90th percentile.

    >>> colour_range(Panel("kernel", np.array([[[-2.0, 2.0]]])))
    (-2.0, 2.0)
    >>> colour_range(Panel("kl", np.array([[[0.2, 0.5, 90.0]]])))[1] < 90
    True
    """
    few = panel.values.ravel()[:: max(1, panel.values.size // 10**6)]
    known = np.abs(few[np.isfinite(few)])
    if not known.size:
        return 0.0, 1.0
    top, most = (float(np.quantile(known, share)) for share in (0.98, 0.9))
    if is_ratio(panel.measure):
        top = min(top, max(1.0, most))
    return (-top if np.nanmin(few) < 0 else 0.0), top or 1.0


def _rounded(values: np.ndarray) -> np.ndarray:
    """To three digits, which compress better."""
    bits = values.astype("<f4").view("<u4") & np.uint32(0xFFFFE000)
    return bits.view("<f4")


def _side(side: Side) -> dict[str, Any]:
    names = None if side.classes is None else [shown(label) for label in side.classes]
    clusters = None if side.clusters is None else [shown(label) for label in side.clusters]
    return {
        "places": side.places,
        **_coded("class", names),
        **_coded("cluster", clusters),
        "examples": None if side.examples is None else list(side.examples),
    }


def _coded(word: str, labels: list[str] | None) -> dict[str, Any]:
    if labels is None:
        return {f"{word}es" if word == "class" else f"{word}s": None, word: None}
    names = in_order(labels)
    code = {name: place for place, name in enumerate(names)}
    return {f"{word}es" if word == "class" else f"{word}s": names, word: [code[label] for label in labels]}


def _pairs(pairs: Pairs | None, order: int) -> dict[str, Any] | None:
    if pairs is None:
        return None
    few = len(pairs.classes) <= PAIRS_SHOWN
    every = {"low": pairs.low, "median": pairs.median, "high": pairs.high} if few else {"last": pairs.median[-1]}
    over_all = {"within": pairs.within, "between": pairs.between, **pairs.bands}
    return {
        "classes": pairs.classes,
        **{name: as_far(values, order) for name, values in over_all.items()},
        **{name: _digits(as_far(values, order), 6) for name, values in every.items()},
    }


def _places(places: Places | None) -> dict[str, Any] | None:
    return None if places is None else {"points": _digits(places.points, 4), "share": places.share}


def _digits(values: np.ndarray, count: int) -> np.ndarray:
    """So many significant digits."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = 10.0 ** (count - 1 - np.floor(np.log10(np.abs(values))))
        return np.where(np.isfinite(scale), np.round(values * scale) / scale, values)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
