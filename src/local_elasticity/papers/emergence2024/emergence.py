"""Identical emergence conditions: rise curves of alignment and elasticity, and what happens as the step grows (α)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

import local_elasticity.emergence as em
from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, said
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
from local_elasticity.statistics.correlation import log_slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACTIVATIONS = ("relu", "tanh", "erf", "linear")
ALPHAS = (0.0, 0.125, 0.25, 0.375, 0.5)
VARIANTS = {name: Variant(activation=name) for name in ACTIVATIONS} | {
    f"relu, alpha {alpha}": Variant(alpha=alpha) for alpha in ALPHAS[:-1]
}
SMALL_STEP = f"relu, alpha {ALPHAS[0]}"

IDENTICAL = Claim(
    "identical",
    "[P] Alignment and local elasticity emerge under identical conditions: rise curves within 0.05 of each other, ReLU",
)
HALF = Claim("half_rise", "[I] They are half risen at the same similarity, to within a twentieth of its range")
SMALL = Claim("leading_order", "[I] At small steps ΔA and LE follow the leading order, both rising as (ηs)²")
PROPORTION = Claim("proportional", "[I] At α = ½ the leading order still gives their size to within a tenth")
THRESHOLD = Claim("thresholds", "[I] Absolute thresholds coincide: at s = 0 both lie equally far below their end")


class Emergence(Experiment):
    name = "emergence2024/emergence"
    title = "Rise curves of alignment and elasticity against train–unseen similarity, and the step size"
    claims = (IDENTICAL, HALF, SMALL, PROPORTION, THRESHOLD)
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
        return Findings(_cells(measured), _judge(measured), _curves(measured), {"emergence": _draw(measured)})


def _gap(run: Measured) -> float:
    """max over s of |u_A − u_LE|."""
    return float(np.abs(em.rise_curve(run["alignment"]) - em.rise_curve(run["elasticity"])).max())


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
            Cell(part, "max |u_A − u_LE|", None, tuple(_gap(run) for run in runs)),
            Cell(part, "distance of half-rise points", None, tuple(_half_gap(run) for run in runs)),
            Cell(part, "rise of A over leading order", None, tuple(a for a, _ in ratios)),
            Cell(part, "LE over leading order", None, tuple(b for _, b in ratios)),
            Cell(part, "A at s = 0 over its end", None, tuple(_floor(run, "alignment") for run in runs)),
            Cell(part, "LE at s = 0 over its end", None, tuple(_floor(run, "elasticity") for run in runs)),
        ]
    return cells


def _judge(measured: Mapping[Unit, Measured]) -> list[Claim]:
    main, small = runs_of(measured, "relu"), runs_of(measured, SMALL_STEP)
    gaps, halves = [_gap(run) for run in main], [_half_gap(run) for run in main]
    return [
        IDENTICAL.judged([gap < 0.05 for gap in gaps], max(gaps), f"max |u_A − u_LE| over s, each seed: {said(gaps)}"),
        HALF.judged([gap < 0.05 for gap in halves], max(halves), f"distance in t of half-rise points: {said(halves)}"),
        _leading(SMALL, small, exponent=True),
        _leading(PROPORTION, main, exponent=False),
        _thresholds(main),
    ]


def _leading(claim: Claim, runs: list[Measured], *, exponent: bool) -> Claim:
    ratios = np.array([_leading_ratio(run) for run in runs])
    mean = ratios.mean(0)
    evidence = f"measured over leading order at t = 1: rise of A {said(ratios[:, 0])}, LE {said(ratios[:, 1])}"
    if exponent:
        evidence += f"; exponent of s in the rise of A {_exponent(runs, 'alignment'):.2f}, of LE "
        evidence += f"{_exponent(runs, 'elasticity'):.2f} (2 by theory)"
    return claim.judged([abs(ratio - 1) < 0.1 for ratio in mean], float(np.abs(mean - 1).max()), evidence)


def _exponent(runs: list[Measured], name: str) -> float:
    """p of rise ~ sᵖ on the mean over seeds, from the upper half of s, where the rise stands clear of sampling."""
    rise = mean_of(runs, name) - mean_of(runs, f"{name} before") if name == "alignment" else mean_of(runs, name)
    s = mean_of(runs, "s")
    upper = slice(len(s) // 2, None)
    return log_slope(np.sqrt(s**2 - s[0] ** 2)[upper], np.abs(rise - rise[0])[upper])


def _thresholds(runs: list[Measured]) -> Claim:
    floors = {name: [_floor(run, name) for run in runs] for name in ("alignment", "elasticity")}
    apart = [abs(a - b) for a, b in zip(*floors.values(), strict=True)]
    evidence = "; ".join(f"{name} at s = 0 is {said(values)} of its end" for name, values in floors.items())
    return THRESHOLD.judged([gap < 0.05 for gap in apart], apart, evidence)


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
