"""The gradient is of rank one but for a rest whose operator norm vanishes, and whose Frobenius share does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024.judging import band, draw_band, over_seeds
from local_elasticity.papers.emergence2024.sweep import MEAN_NORM
from local_elasticity.papers.experiment import (
    Cell,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    runs_of,
)
from local_elasticity.papers.smallest_effects import EXPONENT, TENTH
from local_elasticity.statistics.claims import Claim
from local_elasticity.statistics.correlation import log_slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS: dict[str, tuple[str, float | None]] = {
    "relu": ("relu", None),
    "tanh": ("tanh", None),
    "linear": ("linear", None),
    "relu, outer weights of size 1": ("relu", 1.0),
}
"""Activation, and the deviation of the outer weights (None: 1/√N)."""

EXPONENT_OF_D, SHARE = "exponent of d", "Frobenius share over its prediction at the largest d"
OUTER = "relu, outer weights of size 1"

CLAIMS = (
    Claim(
        "operator",
        "The gradient is c₁aβᵀ up to a rest that falls like d^{-1/2} in operator norm (readers' account)",
        "readers",
        "exponent of d in the rest over rank one, plus ½",
        lambda values: [{"relu": values.of(f"relu: {EXPONENT_OF_D}", "operator") + 0.5}],
        EXPONENT,
        "within",
        ours=True,
    ),
    Claim(
        "frobenius",
        "In Frobenius norm the rest does not fall",
        "ours",
        "exponent of d in the rest over rank one",
        lambda values: [{"relu": values.of(f"relu: {EXPONENT_OF_D}", "frobenius")}],
        EXPONENT,
        "within",
        ours=True,
    ),
    Claim(
        "frobenius_share",
        "Its share tends to √(V′ d/n)/(c₁‖β‖)",
        "ours",
        SHARE,
        lambda values: [{"relu": values.of(f"relu: {SHARE}")}],
        TENTH,
        "within",
        "log",
        ours=True,
    ),
    Claim(
        "outer",
        "With a_i ~ N(0, 1) instead of N(0, 1/N) the rest does not vanish",
        "ours",
        "exponent of d in the rest over rank one, operator norm",
        lambda values: [{OUTER: values.of(f"{OUTER}: {EXPONENT_OF_D}", "operator")}],
        EXPONENT,
        "within",
        ours=True,
    ),
)


class RankOne(Experiment):
    name = "emergence2024/rank_one"
    title = "The rest of the gradient outside its rank-one part, against the dimension, n = N = 2d"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": [32, 64, 128]},
        "small": {"d": [64, 128, 256, 512]},
        "paper": {"d": [64, 128, 256, 512, 1024]},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(PARTS)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        activation, deviation = PARTS[unit.part]
        operator, frobenius, predicted = [], [], []
        for d in settings["d"]:
            task = em.training_data(2 * d, d, mean_norm=MEAN_NORM, seed=unit.seed)
            network = em.TwoLayer.random(d, 2 * d, activation=activation, seed=unit.seed, outer_deviation=deviation)
            step = em.one_step(network, task.X, task.y)
            rest, part = step.norms["rest"], step.norms["rank_one"]
            operator.append(rest.operator / part.operator)
            frobenius.append(rest.frobenius / part.frobenius)
            moments = network.activation.moments()
            predicted.append(float((moments.slope_variance / 2) ** 0.5 / (moments.c1 * step.beta.norm())))
        return {"d": settings["d"], "operator": operator, "frobenius": frobenius, "predicted": predicted}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells, curves = [], []
        for part in PARTS:
            runs = runs_of(measured, part)
            for norm in ("operator", "frobenius"):
                slopes = tuple(_slope(run, norm) for run in runs)
                cells.append(Cell(f"{part}: {EXPONENT_OF_D}", norm, None, slopes))
                cells.append(
                    Cell(f"{part}: rest over rank one at d = {runs[0]['d'][-1]}", norm, None, _ends(runs, norm))
                )
                curves.append(_curve(part, norm, runs))
            if PARTS[part][0] != "linear":
                shares = tuple(run["frobenius"][-1] / run["predicted"][-1] for run in runs)
                cells.append(Cell(f"{part}: {SHARE}", "", None, shares))
        return Findings(cells, curves, {"rank_one": _draw(measured)})


def _slope(run: Measured, norm: str) -> float:
    return log_slope(run["d"], run[norm])


def _ends(runs: list[Measured], norm: str) -> tuple[float, ...]:
    return tuple(run[norm][-1] for run in runs)


def _curve(part: str, norm: str, runs: list[Measured]) -> Curve:
    return band(f"{part}: {norm}", np.array(runs[0]["d"], dtype=float), over_seeds(runs, norm))


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Both norms against d, with the line d^{-1/2} and the predicted Frobenius share."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.8)
        for axes, norm in zip(made.subplots(1, 2), ("operator", "frobenius"), strict=True):
            for part, colour in zip(PARTS, COLOURS, strict=False):
                runs = runs_of(measured, part)
                d = np.array(runs[0]["d"], dtype=float)
                draw_band(axes, d, over_seeds(runs, norm), color=colour, marker="o", markersize=3, label=part)
            relu = runs_of(measured, "relu")
            start = over_seeds(relu, norm).mean(0)[0]
            line = start * (d / d[0]) ** -0.5 if norm == "operator" else over_seeds(relu, "predicted").mean(0)
            name = "$d^{-1/2}$" if norm == "operator" else "predicted, relu"
            axes.plot(d, line, color="0.4", linestyle="--", linewidth=0.8, label=name)
            axes.set(
                xscale="log", yscale="log", xlabel="d (n = N = 2d)", ylabel="rest / rank one", title=f"{norm} norm"
            )
            axes.set_xticks(d, [f"{int(value)}" for value in d])
            axes.minorticks_off()
            axes.legend()
    return made
