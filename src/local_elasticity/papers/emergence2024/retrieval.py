"""Recall@1 on unseen classes against train–unseen similarity, with the same-side control and the equivalent kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, over_seeds, said
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
    Claim,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    runs_of,
)
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

RECALL = Claim("recall", "[P] Higher train–unseen similarity improves Recall@1 in two-layer networks")
FLAT = Claim("flat", "[I] Before the step Recall@1 is flat in design II, so that the rise is the step's doing")
CLUSTERS = Claim("clusters", "[P] Clustering of unseen data improves with train–unseen similarity (K-means)")
KERNEL = Claim("kernel", "[I] Nearest neighbours in the equivalent kernel give the same Recall@1, to within 0.03")
ONE_SIDE = Claim("same_side", "[I] Limit: where both classes lie on one side of β, Recall@1 does not rise (IIIb)")
NULL = Claim("shuffled", "[I] Control: on shuffled labels Recall@1 does not rise")
RISE = 0.02
"""A change of Recall@1 below this is none: one standard error at 400 points a class is about 0.016."""


class Retrieval(Experiment):
    name = "emergence2024/retrieval"
    title = "Recall@1 and K-means on unseen classes against train–unseen similarity"
    claims = (RECALL, FLAT, CLUSTERS, KERNEL, ONE_SIDE, NULL)
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
        return Findings(_cells(measured), _judge(measured), _curves(measured), {"retrieval": _draw(measured)})


def _rise(run: Measured, name: str) -> float:
    return float(run[name][-1] - run[name][0])


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("recall", "accuracy", "nmi"):
            ranks = tuple(spearman(run["s"], run[name]) for run in runs)
            if np.isfinite(ranks).all():
                cells.append(Cell(f"{part}: Spearman with |s|", name, None, ranks))
        for name in ("recall before", "recall", "recall predicted", "recall euclidean", "accuracy", "nmi"):
            cells.append(Cell(f"{part}: rise from t = 0 to 1", name, None, tuple(_rise(run, name) for run in runs)))
    return cells


def _judge(measured: Mapping[Unit, Measured]) -> list[Claim]:
    main = runs_of(measured, MAIN)
    ranks = [spearman(run["s"], run["recall"]) for run in main]
    gains = [_rise(run, "accuracy") for run in main]
    return [
        RECALL.judged(
            [rank > 0.95 for rank in ranks],
            ranks,
            f"Spearman of Recall@1 with |s|, each seed, wanted above 0.95: {said(ranks)}; {_from_to(main, 'recall')}",
        ),
        _flat(main),
        CLUSTERS.judged(
            [gain > RISE for gain in gains],
            gains,
            f"accuracy {_from_to(main, 'accuracy')}; NMI {_from_to(main, 'nmi')}",
        ),
        _kernel(main),
        _not_rising(ONE_SIDE, runs_of(measured, SAME_SIDE)),
        _not_rising(NULL, runs_of(measured, SHUFFLED)),
    ]


def _from_to(runs: list[Measured], name: str) -> str:
    values = over_seeds(runs, name)
    return f"{values[:, 0].mean():.3f} at t = 0, {values[:, -1].mean():.3f} at t = 1"


def _flat(runs: list[Measured]) -> Claim:
    rises = [_rise(run, "recall before") for run in runs]
    mean, error = float(np.mean(rises)), float(np.std(rises, ddof=1) / np.sqrt(len(rises))) if len(rises) > 1 else 1.0
    evidence = f"Recall@1 before the step, t = 1 less t = 0: {said(rises)}; {abs(mean) / error:.1f} standard errors"
    return FLAT.judged([abs(mean) < max(RISE, 2 * error)], rises, evidence)


def _kernel(runs: list[Measured]) -> Claim:
    error = np.abs(mean_of(runs, "recall predicted") - mean_of(runs, "recall"))
    evidence = f"mean over seeds, difference over t: {error.mean():.3f} on average, {error.max():.3f} at most"
    return KERNEL.judged([bool(value < 0.03) for value in error], float(error.max()), evidence)


def _not_rising(claim: Claim, runs: list[Measured]) -> Claim:
    rises = [_rise(run, "recall") for run in runs]
    others = {name: said(_rise(run, name) for run in runs) for name in ("alignment", "elasticity")}
    evidence = (
        f"Recall@1 at t = 1 less t = 0: {said(rises)}; meanwhile alignment rises by {others['alignment']}, "
        f"elasticity by {others['elasticity']}"
    )
    return claim.judged([float(np.mean(rises)) < RISE], rises, evidence)


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
