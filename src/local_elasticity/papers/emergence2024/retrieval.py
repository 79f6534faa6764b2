"""Recall@1 on unseen classes against train–unseen similarity, with the same-side control and the equivalent kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, over_seeds
from local_elasticity.papers.emergence2024.sweep import (
    Variant,
    clusters_row,
    columns,
    features_row,
    retrieval_row,
    sides,
    trained,
    turning,
)
from local_elasticity.papers.experiment import (
    Cell,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    Values,
    runs_of,
)
from local_elasticity.papers.smallest_effects import ANY, ELEVEN_RANKS, KERNEL_RECALL, NO_RISE
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.correlation import spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN, SAME_SIDE, SHUFFLED = "design II, relu", "design IIIb, relu", "design II, shuffled labels"
VARIANTS = {
    MAIN: Variant(),
    "design II, tanh": Variant(activation="tanh"),
    "design II, linear": Variant(activation="linear"),
    SHUFFLED: Variant(shuffled=True),
    "design I, relu": Variant(design="I"),
    SAME_SIDE: Variant(design="IIIb"),
}

RANK, RISE, KERNEL = "Spearman with |s|", "rise from t = 0 to 1", "equivalent kernel less measured Recall@1, largest"


def _rise_of(part: str, name: str) -> Callable[[Values], Alternatives]:
    return lambda values: [{part: values.of(f"{part}: {RISE}", name)}]


CLAIMS = (
    Claim(
        "recall",
        "Higher train-unseen similarity improves Recall@1 in two-layer networks",
        "abstract",
        "Spearman's correlation of Recall@1 with |s| over eleven values of t",
        lambda values: [{MAIN: values.of(f"{MAIN}: {RANK}", "recall")}],
        ANY,
        scale="fisher",
        resolution=ELEVEN_RANKS,
    ),
    Claim(
        "clusters",
        "The improvement of clustering performance on unseen data",
        "abstract",
        "K-means accuracy at t = 1 less t = 0",
        _rise_of(MAIN, "accuracy"),
        NO_RISE,
    ),
    Claim(
        "flat",
        "Before the step Recall@1 is flat in design II, so the rise comes from the step",
        "ours",
        "Recall@1 before the step, t = 1 less t = 0",
        _rise_of(MAIN, "recall before"),
        NO_RISE,
        "within",
        ours=True,
    ),
    Claim(
        "kernel",
        "Nearest neighbours in the equivalent kernel give the same Recall@1, to within 0.03",
        "ours",
        "the largest difference over t",
        lambda values: [{MAIN: values.of(f"{MAIN}: {KERNEL}")}],
        KERNEL_RECALL,
        "below",
        ours=True,
    ),
    Claim(
        "same_side",
        "Limit: where both classes lie on one side of β, Recall@1 does not rise (IIIb)",
        "ours",
        "Recall@1, t = 1 less t = 0",
        _rise_of(SAME_SIDE, "recall"),
        NO_RISE,
        "below",
        ours=True,
    ),
    Claim(
        "shuffled",
        "Control: on shuffled labels Recall@1 does not rise",
        "ours",
        "Recall@1, t = 1 less t = 0",
        _rise_of(SHUFFLED, "recall"),
        NO_RISE,
        "below",
        ours=True,
    ),
)


class Retrieval(Experiment):
    name = "emergence2024/retrieval"
    title = "Recall@1 and K-means on unseen classes against train–unseen similarity"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": 64, "n": 128, "width": 128, "per_class": 30, "values": 3},
        "small": {"d": 128, "n": 256, "width": 256, "per_class": 200, "values": 11},
        "paper": {"d": 256, "n": 512, "width": 512, "per_class": 400, "values": 11},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(VARIANTS)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        variant = VARIANTS[unit.part]
        found = trained(variant, settings, unit.seed)
        rows = []
        for seen in turning(variant, settings, found, unit.seed):
            row = {**sides(found, seen), **retrieval_row(found, seen)}
            rows.append({**row, **clusters_row(seen, unit.seed), **features_row(seen)})
        return columns(rows)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), _curves(measured), {"retrieval": _draw(measured)})


def _rise(run: Measured, name: str) -> float:
    return float(run[name][-1] - run[name][0])


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("recall", "accuracy", "nmi"):
            ranks = tuple(spearman(run["s"], run[name]) for run in runs)
            if np.isfinite(ranks).all():
                cells.append(Cell(f"{part}: {RANK}", name, None, ranks))
        for name in ("recall before", "recall", "recall predicted", "recall euclidean", "accuracy", "nmi"):
            cells.append(Cell(f"{part}: {RISE}", name, None, tuple(_rise(run, name) for run in runs)))
        gaps = tuple(float(np.abs(np.subtract(run["recall predicted"], run["recall"])).max()) for run in runs)
        cells.append(Cell(f"{part}: {KERNEL}", "", None, gaps))
    return cells


def _curves(measured: Mapping[Unit, Measured]) -> list[Curve]:
    curves = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("recall before", "recall", "recall predicted", "accuracy", "nmi"):
            curves.append(band(f"{part}: {name}", mean_of(runs, "t"), over_seeds(runs, name)))
    return curves


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Recall@1 before, after and predicted in the three designs; clustering and controls beside them."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 4.4)
        panels = made.subplots(2, 3, sharex=True, sharey=True)
        for axes, part in zip(panels.flat, VARIANTS, strict=True):
            runs = runs_of(measured, part)
            t = mean_of(runs, "t")
            draw_band(axes, t, over_seeds(runs, "recall before"), color="0.6", label="Recall@1 before")
            draw_band(axes, t, over_seeds(runs, "recall"), color=COLOURS[0], label="Recall@1 after")
            axes.plot(t, mean_of(runs, "recall predicted"), "--", color=COLOURS[1], label="equivalent kernel")
            axes.plot(t, mean_of(runs, "accuracy"), ":", color=COLOURS[2], label="K-means accuracy")
            axes.set(title=part, ylim=(0.45, 1.02))
        panels[0, 0].legend()
        for axes in panels[1]:
            axes.set_xlabel("t: 0 across the task, 1 along it")
    return made
