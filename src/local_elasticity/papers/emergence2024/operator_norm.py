"""The operator norm of non-centred sub-Gaussian matrices against its bound, with and without the mean's term."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024.judging import band, draw_band, over_seeds
from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    runs_of,
)
from local_elasticity.papers.smallest_effects import AT_MOST_ONE, TIGHT
from local_elasticity.statistics.claims import Alternatives, Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_ONES = "all ones"
NOISES = tuple(em.NOISES)
PARTS = (*NOISES, ALL_ONES)
MEAN_NORMS = (0.5, 1.0, 2.0, 4.0, 8.0)
RATIOS = (0.5, 1.0, 2.0, 4.0)
"""n/d."""

OVER, WITHOUT_MEAN, SMALLEST = (
    "‖X‖ over the bound, largest",
    "‖X‖ over the bound, largest, without the mean's term",
    "‖X‖ over the bound, smallest",
)


def _all(column: str, parts: Sequence[str]) -> Callable[[Values], Alternatives]:
    return lambda values: [{part: values.of(part, column) for part in parts}]


CLAIMS = (
    Claim(
        "bound",
        "Operator norm bounds of non-centered Sub-Gaussian matrices: ‖X‖ ≤ √n‖v‖ + 1.1(√n + √d) (the constant is ours)",
        "abstract",
        "the largest ‖X‖ over the bound over shapes and means, five noises",
        _all(OVER, NOISES),
        AT_MOST_ONE,
        "below",
        "log",
        ours=True,
    ),
    Claim(
        "bound_of_ones",
        "The same for the matrix of all ones, which has no noise",
        "abstract",
        "the largest ‖X‖ over the bound over shapes and means",
        _all(OVER, [ALL_ONES]),
        AT_MOST_ONE,
        "below",
        kind="exact",
        ours=True,
    ),
    Claim(
        "mean",
        "The mean's term is needed: without it the bound breaks",
        "ours",
        "the largest ‖X‖ over the bound without it",
        _all(WITHOUT_MEAN, NOISES),
        AT_MOST_ONE,
        scale="log",
        ours=True,
    ),
    Claim(
        "tight",
        "It is of the right size: never more than twice ‖X‖",
        "ours",
        "the smallest ‖X‖ over the bound over shapes and means, five noises",
        _all(SMALLEST, NOISES),
        TIGHT,
        scale="log",
        ours=True,
    ),
)


class OperatorNorm(Experiment):
    name = "emergence2024/operator_norm"
    title = "Operator norms of non-centred sub-Gaussian matrices against the bound"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": [64]},
        "small": {"d": [64, 256]},
        "paper": {"d": [64, 256, 512]},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(PARTS)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        rows = []
        for d in settings["d"]:
            for ratio in RATIOS:
                n = int(ratio * d)
                for mean_norm in MEAN_NORMS:
                    rows.append({"d": d, "n": n, "mean_norm": mean_norm, **_norm(unit, n, d, mean_norm)})
        return {name: [row[name] for row in rows] for name in rows[0]}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = [
            Cell(part, row, None, tuple(float(pick(r)) for r in _ratios(measured, part, name)))
            for part in PARTS
            for row, name, pick in (
                (OVER, "bound", max),
                (WITHOUT_MEAN, "without mean", max),
                (SMALLEST, "bound", min),
            )
        ]
        curves = [
            band(f"{part}: ‖X‖ over the bound", np.array(MEAN_NORMS), _against_mean(measured, part, "bound"))
            for part in PARTS
        ]
        return Findings(cells, curves, {"operator_norm": _draw(measured)})


def _norm(unit: Unit, n: int, d: int, mean_norm: float) -> dict[str, float]:
    """The norm and both bounds; the all-ones matrix, scaled to rows of norm `mean_norm`, has no noise at all."""
    if unit.part == ALL_ONES:
        X = torch.ones(n, d, dtype=torch.float64) * mean_norm / d**0.5
    else:
        X = em.training_data(n, d, mean_norm=mean_norm, kind=unit.part, seed=unit.seed).X
    return {
        "norm": em.operator_norm(X),
        "bound": em.operator_norm_bound(n, d, mean_norm),
        "without mean": em.operator_norm_bound(n, d, 0.0),
    }


def _ratios(measured: Mapping[Unit, Measured], part: str, bound: str) -> np.ndarray:
    """‖X‖ over the bound, [seeds, shapes × means]."""
    runs = runs_of(measured, part)
    return np.asarray(over_seeds(runs, "norm") / over_seeds(runs, bound))


def _against_mean(measured: Mapping[Unit, Measured], part: str, bound: str) -> np.ndarray:
    """The largest ratio over shapes for each ‖v‖, [seeds, means]."""
    ratios = _ratios(measured, part, bound)
    return np.asarray(ratios.reshape(len(ratios), -1, len(MEAN_NORMS)).max(1))


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """The largest ratio over shapes against ‖v‖, with the mean's term and without."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.6)
        titles = {"bound": "with the mean's term", "without mean": "without it"}
        for axes, (bound, title) in zip(made.subplots(1, 2, sharey=True), titles.items(), strict=True):
            for part, colour in zip(PARTS, COLOURS, strict=True):
                draw_band(axes, np.array(MEAN_NORMS), _against_mean(measured, part, bound), color=colour, label=part)
            axes.axhline(1, color="0.4", linewidth=0.6)
            axes.set(xscale="log", yscale="log", xlabel="‖v‖", ylabel="largest ‖X‖ / bound", title=title)
            axes.set_xticks(MEAN_NORMS, [f"{value:g}" for value in MEAN_NORMS])
            axes.minorticks_off()
            axes.legend()
    return made
