"""Figures 11–13: S_rel of the diagonal quadratic model against distance and time; formula, flow by numbers, and SGD.

The text: a = (1, 4, 9), b = 1, w(0)² = (½, 2, 4), θ = η = 0.001, inputs N(0, I). Fig. 11: t = 500, x′ = (−1, −11, 1),
x(z) = x′ + √z·1 for z = 1 … 100. Figs 12 and 13: t to 1000 and 2000, one pair that rises at once and one that first
falls; the pairs are lost from the text, and ours are (1, 1, 1) with (1, 2, 3) and with (3, 1, 1). SGD is of eq. 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
from local_elasticity.papers.smallest_effects import ANY, NEVER, REACHED, SMALL_GAP
from local_elasticity.statistics.claims import Claim
from local_elasticity.theory import DiagonalQuadratic, integrate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRUTH = np.array([1.0, 4.0, 9.0])
FLOW = DiagonalQuadratic(TRUTH, np.ones(3), np.sqrt([0.5, 2.0, 4.0]), 0.001)
STEP = 0.001
X_PRIME = np.array([-1.0, -11.0, 1.0])
PAIRS = {
    "rises at once": (np.ones(3), np.array([1.0, 2.0, 3.0])),
    "first falls": (np.ones(3), np.array([3.0, 1.0, 1.0])),
}
"""Source and target."""

DISTANCE, TIME, ANY_PAIRS = "Fig. 11, distance", "Figs 12–13, time", "random pairs"
WAYS = ("formula", "flow by numbers", "SGD")
RISE_AWAY = "largest rise of S_rel as x moves one step away from x′ (formula)"
FALL_SOMEWHERE = "share of random pairs whose S_rel falls somewhere after t = 500"
FALL_EVERYWHERE = "share of random pairs whose S_rel falls at every time after t = 500"
SGD_GAP = "largest relative distance of the mean over runs of SGD from the formula"
FARTHEST = "largest ‖w − w*‖ over the runs at the last step"
CLAIMS = (
    Claim(
        "farther",
        "At all times S_rel decreases as x gets farther away from x′",
        "Fig. 11",
        RISE_AWAY,
        lambda values: [{"formula": values.of(RISE_AWAY)}],
        ANY,
        "below",
        kind="exact",
    ),
    Claim(
        "non_decreasing",
        "For all (x, x′) S_rel is a non-decreasing function of time for all later times",
        "Fig. 12",
        FALL_SOMEWHERE,
        lambda values: [{"pairs from N(0, I)": values.of(FALL_SOMEWHERE)}],
        NEVER,
        "below",
    ),
    Claim(
        "sgd",
        "The sharp resemblance (of values as well as of the shape) between the flow and SGD averaged over runs",
        "Figs 12, 13",
        SGD_GAP,
        lambda values: [{name: values.of(SGD_GAP, name) for name in PAIRS}],
        SMALL_GAP,
        "below",
        "log",
    ),
    Claim(
        "reaches",
        "In all runs ‖w_t − w*‖ < 1e-6 eventually",
        "Fig. 13",
        FARTHEST,
        lambda values: [{"all runs": values.of(FARTHEST)}],
        REACHED,
        "below",
        "log",
    ),
)


class Homogeneous(Experiment):
    name = "dan2021dynamics/homogeneous"
    title = "S_rel of the diagonal quadratic model: formula, flow by numbers, SGD (Figs 11–13)"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"runs": 20, "until": 2000, "pairs": 50},
        "small": {"runs": 200, "until": 10000, "pairs": 500},
        "paper": {"runs": 1000, "until": 10000, "pairs": 2000},
    }

    def parts(self, settings: Settings) -> list[str]:
        return [DISTANCE, TIME, ANY_PAIRS]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        rng = np.random.default_rng(unit.seed)
        if unit.part == DISTANCE:
            return _distance(sgd(rng, settings["runs"], np.array([0, 500])))
        if unit.part == TIME:
            return _time(rng, settings)
        return _any(rng, settings["pairs"])

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = [
            Cell(f"{name}: S_rel", f"t = {t}, {way}", None, _values(measured, name, way, t))
            for name in PAIRS
            for t in (0, 500, 1000, 2000)
            for way in WAYS
        ]
        curves = [_curve(measured, DISTANCE, "distance", way) for way in WAYS]
        curves += [_curve(measured, TIME, name, way) for name in PAIRS for way in WAYS]
        figures = {"fig11": _draw_distance(measured), "fig12_13": _draw_time(measured)}
        return Findings([*cells, *_claim_cells(measured)], curves, figures)


def sgd(rng: np.random.Generator, runs: int, record: np.ndarray) -> np.ndarray:
    """The SGD below eq. 15, all runs at once; w at the recorded steps, [t, runs, 3]."""
    w, kept = np.tile(FLOW.start, (runs, 1)), []
    wanted = set(record.tolist())
    for step in range(int(record[-1]) + 1):
        if step in wanted:
            kept.append(w)
        x = rng.normal(size=(runs, 3))
        error = (x * (TRUTH - w**2)).sum(1)
        w = w + 2 * STEP * error[:, None] * x * w
    return np.stack(kept)


def _distance(w: np.ndarray) -> Measured:
    """Fig. 11: S_rel at t = 500 with x′ fixed, as the source moves away."""
    z = np.arange(1, 101)
    source = X_PRIME + np.sqrt(z)[:, None]
    numbers = integrate(FLOW, FLOW.start, 500.0)
    along_runs = FLOW.relative_at(w[-1], source, X_PRIME, step_size=STEP)
    return {
        "distance": {
            "x": np.sqrt(3 * z).tolist(),
            "formula": _plain(FLOW.relative(500.0, source, X_PRIME)),
            "flow by numbers": _plain(FLOW.relative_at(numbers, source, X_PRIME)),
            "SGD": _plain(along_runs.mean(0)),
            "low": _plain(along_runs.min(0)),
            "high": _plain(along_runs.max(0)),
        }
    }


def _time(rng: np.random.Generator, settings: Settings) -> Measured:
    """Figs 12 and 13: S_rel of both pairs along the flow and along SGD, whose steps are of size η as well."""
    record = np.arange(0, 2001, 10)
    w = sgd(rng, settings["runs"], np.append(record, settings["until"]) if settings["until"] > 2000 else record)
    numbers = integrate(FLOW, FLOW.start, record)
    found: dict[str, object] = {"farthest": float(np.linalg.norm(w[-1] - np.sqrt(TRUTH), axis=1).max())}
    for name, (source, target) in PAIRS.items():
        runs = np.stack([FLOW.relative_at(now, source, target, step_size=STEP) for now in w[: len(record)]])
        found[name] = {
            "x": record.tolist(),
            "formula": _plain(FLOW.relative(record, source, target)),
            "flow by numbers": _plain(FLOW.relative_at(numbers, source, target)),
            "SGD": _plain(runs.mean(1)),
            "low": _plain(np.quantile(runs, 0.1, axis=1)),
            "high": _plain(np.quantile(runs, 0.9, axis=1)),
        }
    return found


def _any(rng: np.random.Generator, pairs: int) -> Measured:
    """Random pairs: in which share does S_rel fall somewhere, and everywhere, after t = 500?"""
    source, target = rng.normal(size=(2, pairs, 3))
    late = np.arange(500, 4001, 50)
    squares = FLOW.squares(late)
    S = np.abs(squares @ (source * target).T) / (squares @ (source**2).T)
    falls = np.diff(S, axis=0) < -1e-12
    return {"somewhere": float(falls.any(0).mean()), "everywhere": float(falls.all(0).mean())}


def _plain(values: np.ndarray) -> list[float]:
    return [float(f"{v:.7g}") for v in values]


def _values(measured: Mapping[Unit, Measured], name: str, way: str, t: int) -> tuple[float, ...]:
    return tuple(found[name][way][found[name]["x"].index(t)] for found in runs_of(measured, TIME))


def _curve(measured: Mapping[Unit, Measured], part: str, name: str, way: str) -> Curve:
    """Means over seeds; for SGD with its band."""
    found = [one[name] for one in runs_of(measured, part)]
    mean = np.mean([one[way] for one in found], axis=0)
    low, high = (np.mean([one[key] for one in found], axis=0) if way == "SGD" else mean for key in ("low", "high"))
    return Curve(f"{name}: {way}", found[0]["x"], _plain(mean), _plain(low), _plain(high))


def _claim_cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    runs, anywhere = runs_of(measured, TIME), runs_of(measured, ANY_PAIRS)
    away = [float(np.diff(one["distance"]["formula"]).max()) for one in runs_of(measured, DISTANCE)]
    gaps = {
        name: [float(np.abs(np.array(one[name]["SGD"]) / np.array(one[name]["formula"]) - 1).max()) for one in runs]
        for name in PAIRS
    }
    return [
        Cell(RISE_AWAY, "", None, tuple(away)),
        Cell(FALL_SOMEWHERE, "", None, tuple(one["somewhere"] for one in anywhere)),
        Cell(FALL_EVERYWHERE, "", None, tuple(one["everywhere"] for one in anywhere)),
        *(Cell(SGD_GAP, name, None, tuple(values)) for name, values in gaps.items()),
        Cell(FARTHEST, "", None, tuple(one["farthest"] for one in runs)),
    ]


def _draw_distance(measured: Mapping[Unit, Measured]) -> Figure:
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, ONE_COLUMN, STYLE, figure

    with mpl.rc_context(STYLE):
        made = figure(ONE_COLUMN, 2.6)
        _draw_ways(made.subplots(), measured, DISTANCE, "distance", COLOURS)
        made.axes[0].set(xlabel="‖x − x′‖", ylabel="$S_{rel}$ at t = 500", title="Fig. 11: x moves away from x′")
    return made


def _draw_time(measured: Mapping[Unit, Measured]) -> Figure:
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.6)
        for axes, name in zip(made.subplots(1, 2), PAIRS, strict=True):
            _draw_ways(axes, measured, TIME, name, COLOURS)
            source, target = (tuple(int(v) for v in one) for one in PAIRS[name])
            axes.set(xlabel="t", ylabel="$S_{rel}$", title=f"{name}: x = {source}, x′ = {target}")
    return made


def _draw_ways(axes: Any, measured: Mapping[Unit, Measured], part: str, name: str, colours: Sequence[str]) -> None:
    """SGD with its band below, the formula as a line, the flow by numbers as dots on it."""
    curves = {way: _curve(measured, part, name, way) for way in WAYS}
    axes.fill_between(curves["SGD"].x, curves["SGD"].low, curves["SGD"].high, color=colours[1], alpha=0.2, linewidth=0)
    axes.plot(curves["SGD"].x, curves["SGD"].mean, color=colours[1], linewidth=3, label="SGD, mean over runs")
    axes.plot(curves["formula"].x, curves["formula"].mean, color=colours[0], linewidth=1, label="formula")
    dots = curves["flow by numbers"]
    axes.plot(dots.x[::10], dots.mean[::10], ".", color=colours[0], markersize=3, label="flow by numbers")
    axes.legend()
