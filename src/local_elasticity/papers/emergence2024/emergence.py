"""Identical emergence conditions: rise curves of alignment and elasticity, and what happens as the step grows (α)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, rise_gap
from local_elasticity.papers.emergence2024.sweep import (
    Variant,
    columns,
    features_row,
    sides,
    theory_row,
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
from local_elasticity.papers.smallest_effects import CURVES_ALIKE, TENTH
from local_elasticity.statistics.claims import Alternatives, Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACTIVATIONS = ("relu", "tanh", "erf", "linear")
ALPHAS = (0.0, 0.125, 0.25, 0.375, 0.5)
VARIANTS = {name: Variant(activation=name) for name in ACTIVATIONS} | {
    f"relu, alpha {alpha}": Variant(alpha=alpha) for alpha in ALPHAS[:-1]
}
SMALL_STEP = f"relu, alpha {ALPHAS[0]}"

GAP, HALF_GAP = "max |u_A − u_LE|", "distance of half-rise points"
LEADING = ("rise of A over leading order", "LE over leading order")
FLOORS = ("A at s = 0 over its end", "LE at s = 0 over its end")


def _of(part: str, names: Sequence[str]) -> Callable[[Values], Alternatives]:
    return lambda values: [{name: values.of(part, name) for name in names}]


CLAIMS = (
    Claim(
        "identical",
        "Alignment and Local Elasticity emergence condition after one step of training are identical",
        "abstract",
        "the largest distance of the two rise curves over s, ReLU",
        _of("relu", [GAP]),
        CURVES_ALIKE,
        "below",
        "log",
    ),
    Claim(
        "half_rise",
        "They are half risen at the same similarity, to within a twentieth of its range",
        "ours",
        "distance of the half-rise points as a share of the range of |s|",
        _of("relu", [HALF_GAP]),
        CURVES_ALIKE,
        "below",
        ours=True,
    ),
    Claim(
        "leading_order",
        "At small steps ΔA and LE follow the leading order, both rising as (ηs)²",
        "ours",
        "measured over leading order at t = 1",
        _of(SMALL_STEP, LEADING),
        TENTH,
        "within",
        "log",
        ours=True,
    ),
    Claim(
        "proportional",
        "At α = ½ the leading order still gives their size to within a tenth",
        "ours",
        "measured over leading order at t = 1",
        _of("relu", LEADING),
        TENTH,
        "within",
        "log",
        ours=True,
    ),
    Claim(
        "thresholds",
        "Absolute thresholds coincide: at s = 0 both lie equally far below their end",
        "ours",
        "A at s = 0 as a share of its end less the same of LE",
        lambda values: [{"A − LE": values.of("relu", FLOORS[0]) - values.of("relu", FLOORS[1])}],
        CURVES_ALIKE,
        "within",
        ours=True,
    ),
)


class Emergence(Experiment):
    name = "emergence2024/emergence"
    title = "Rise curves of alignment and elasticity against train–unseen similarity, and the step size"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": 64, "n": 128, "width": 128, "per_class": 40, "values": 4},
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
            rows.append({**sides(found, seen), **features_row(seen), **theory_row(found, seen)})
        return {**columns(rows), "step_size": found.step.step_size}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), _curves(measured), {"emergence": _draw(measured)})


def _gap(run: Measured) -> float:
    """max over s of |u_A − u_LE|."""
    return rise_gap(run["alignment"], run["elasticity"])


def _half_gap(run: Measured) -> float:
    """The distance of the half-rise points, as a share of the range of |s|."""
    a, b = (em.half_rise(run["t"], run[name]) for name in ("alignment", "elasticity"))
    return abs(a - b)


def _leading_ratio(run: Measured) -> tuple[float, float]:
    """Measured over leading order at t = 1: of the rise of A above s = 0, and of LE."""
    gained = np.array(run["alignment"]) - run["alignment before"]
    leading = run["leading rise"]
    rise = (gained[-1] - gained[0]) / (leading[-1] - leading[0])
    return float(rise), float(run["elasticity"][-1] / run["leading elasticity"][-1])


def _floor(run: Measured, name: str) -> float:
    """Where it begins, as a share of where it ends."""
    return float(run[name][0] / run[name][-1])


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        ratios = [_leading_ratio(run) for run in runs]
        cells += [
            Cell(part, GAP, None, tuple(_gap(run) for run in runs)),
            Cell(part, HALF_GAP, None, tuple(_half_gap(run) for run in runs)),
            Cell(part, LEADING[0], None, tuple(a for a, _ in ratios)),
            Cell(part, LEADING[1], None, tuple(b for _, b in ratios)),
            Cell(part, FLOORS[0], None, tuple(_floor(run, "alignment") for run in runs)),
            Cell(part, FLOORS[1], None, tuple(_floor(run, "elasticity") for run in runs)),
        ]
    return cells


def _curves(measured: Mapping[Unit, Measured]) -> list[Curve]:
    curves = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("alignment", "elasticity"):
            rises = np.array([em.rise_curve(run[name]) for run in runs])
            curves.append(band(f"{part}: u of {name}", mean_of(runs, "s"), rises))
    return curves


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Rise curves (theory dashed), their difference for every activation, and measured over leading order against α."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.6)
        rises, gaps, sizes = made.subplots(1, 3)
        runs = runs_of(measured, "relu")
        s = mean_of(runs, "s")
        for name, colour in zip(("alignment", "elasticity"), COLOURS, strict=False):
            draw_band(rises, s, np.array([em.rise_curve(run[name]) for run in runs]), color=colour, label=name)
            rises.plot(s, em.rise_curve(mean_of(runs, f"theory {name}")), color="black", linestyle="--", linewidth=0.7)
        rises.set(xlabel="train–unseen similarity |s|", ylabel="u(s), theory dashed", title="ReLU: rise curves")
        rises.legend()
        for part, colour in zip(ACTIVATIONS, COLOURS, strict=False):
            runs = runs_of(measured, part)
            curves = [em.rise_curve(run["alignment"]) - em.rise_curve(run["elasticity"]) for run in runs]
            draw_band(gaps, mean_of(runs, "s"), np.array(curves), color=colour, label=part)
        for limit in (-0.05, 0.05):
            gaps.axhline(limit, color="0.6", linewidth=0.6)
        gaps.set(xlabel="train–unseen similarity |s|", ylabel="$u_A - u_{LE}$", title="their difference")
        gaps.legend()
        ratios = np.array([[_leading_ratio(run) for run in runs_of(measured, _alpha_part(a))] for a in ALPHAS])
        for which, name in enumerate(("rise of A", "LE")):
            draw_band(sizes, np.array(ALPHAS), ratios[:, :, which].T, color=COLOURS[which], label=name)
        sizes.axhline(1, color="0.6", linewidth=0.6)
        sizes.set(xlabel="α, step size $n^α$", ylabel="measured / leading order", title="ReLU at t = 1", ylim=(0, None))
        sizes.legend()
    return made


def _alpha_part(alpha: float) -> str:
    return "relu" if alpha == ALPHAS[-1] else f"relu, alpha {alpha}"
