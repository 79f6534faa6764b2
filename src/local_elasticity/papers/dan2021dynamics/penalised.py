"""Figures 6–9: S_rel of penalised regression over random features, by eq. 4 as defined, as printed and as released.

The text: K = 2 classes of 1000 inputs in 100 dimensions, N(1, variance 2) and N(9, 1), features h = relu(W_r x) with
p = 10 or 100 and W_r Gaussian, λ = 1, θ = 0.001, 20 pairs, 8000 steps, W(0) ~ N(0, 1). Between classes the source is
of the first; within, both are. The notebook (reading as_released): standard deviation 2 for the first class, the source
from the second, and the “intra-class” notebook pairs two classes as well. All three formulas are shown on either data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
    Values,
)
from local_elasticity.papers.smallest_effects import ANY_RATIO, TWICE, VISIBLY
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.theory import PenalisedFeatures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS, RATE, PENALTY = 100, 1e-6, 1.0
FORMULAS: tuple[Reading, ...] = ("as_defined", "as_printed", "as_released")
NAMES = {"as_defined": "as defined (ridge λ/K)", "as_printed": "as printed (ridge Nλ/K)", "as_released": "as released"}
FIGURES = {
    "Fig. 6, inter-class p=10": (10, True),
    "Fig. 7, inter-class p=100": (100, True),
    "Fig. 8, intra-class p=10": (10, False),
    "Fig. 9, intra-class p=100": (100, False),
}
RESCALED = "rescaled features, inter-class p=10"
"""Features divided so that the mean of ‖h‖² is 4, and a rate to match: where the penalty is felt."""

LATE = "S_rel at the end over its median while the loss falls"
RISE = "S_rel where the loss has done 90 % of its fall over its start"
MORE = "rise of the notebook's formula over that of eq. 4, at least 1"
END, SPAN = "end/start of S_rel, {}", "largest/least S_rel, {}"


def _figures(row: str, *, rescaled: bool = False) -> Callable[[Values], Alternatives]:
    """All figures, each of them a comparison."""
    parts = (RESCALED,) if rescaled else tuple(FIGURES)
    return lambda values: [{part: values.of(part, row) for part in parts}]


CLAIMS = (
    Claim(
        "two_phases",
        "S_rel is larger late than during most of the phase in which the loss falls",
        "Figs 6–9",
        f"{LATE}, eq. 4 as defined, every figure",
        _figures(LATE),
        ANY_RATIO,
        scale="log",
    ),
    Claim(
        "together",
        "S_rel rises rapidly while the loss falls rapidly",
        "Figs 6–9",
        f"{RISE}, eq. 4 as defined, every figure",
        _figures(RISE),
        VISIBLY,
        scale="log",
    ),
    Claim(
        "artefact",
        "On the same data the notebook's formula rises at least twice as much as eq. 4",
        "Figs 6–9",
        MORE,
        _figures(MORE),
        TWICE,
        scale="log",
        ours=True,
    ),
    Claim(
        "rescaled",
        "With features of size 1 the penalty moves S_rel visibly, up or down",
        "§3",
        SPAN.format(NAMES["as_defined"]),
        _figures(SPAN.format(NAMES["as_defined"]), rescaled=True),
        VISIBLY,
        scale="log",
        ours=True,
    ),
)


class Penalised(Experiment):
    name = "dan2021dynamics/penalised"
    title = "S_rel of penalised regression over random features, three readings of eq. 4 (Figs 6–9)"
    claims = CLAIMS
    readings = ("as_defined", "as_released")
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"per_class": 60, "starts": 2, "pairs": 4},
        "small": {"per_class": 1000, "starts": 4, "pairs": 20},
        "paper": {"per_class": 1000, "starts": 10, "pairs": 20},
    }

    def parts(self, settings: Settings) -> list[str]:
        return [*FIGURES, RESCALED]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        size, between = FIGURES.get(unit.part, (10, True))
        rng = np.random.default_rng([unit.seed, size])
        features, labels = random_features(rng, size, settings["per_class"], released=reading == "as_released")
        rate = RATE
        if unit.part == RESCALED:
            features, rate = features * 2 / np.sqrt((features**2).sum(1).mean()), 1e-3
        source, target = choose_pairs(rng, features, labels, settings["pairs"], reading=reading, between=between)
        starts = rng.normal(size=(settings["starts"], 2, size))
        flow = PenalisedFeatures(features, labels, PENALTY, rate, starts[0])
        curves = {one: _curves(replace(flow, reading=one), starts, source, target) for one in FORMULAS}
        return {"t": times().tolist(), "pairs": settings["pairs"], "curves": curves}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        there = [part for part in (*FIGURES, RESCALED) if any(unit.part == part for unit in measured)]
        cells = [cell for part in there for formula in FORMULAS for cell in _moved_cells(measured, part, formula)]
        whats = ("S", "loss")
        curves = [_band(measured, part, formula, what) for part in there for formula in FORMULAS for what in whats]
        names = {part: part.split(",")[0].replace(". ", "").replace(" ", "_").lower() for part in there}
        cells += [cell for part in there for cell in _phase_cells(measured, part)]
        return Findings(cells, curves, {names[part]: _draw(measured, part) for part in there})


def times() -> np.ndarray:
    """Steps 0 to 8000, every 50th and more of them at the start."""
    early = np.geomspace(1, 400, 60).round()
    return np.unique(np.concatenate([early, np.arange(0, 8001, 50)]))


def random_features(
    rng: np.random.Generator, size: int, per_class: int, *, released: bool
) -> tuple[np.ndarray, np.ndarray]:
    """relu(W_r x) of both classes, [2 per_class, p], and their classes."""
    spread = 2.0 if released else 2.0**0.5
    first = 1 + spread * rng.normal(size=(per_class, INPUTS))
    second = 9 + rng.normal(size=(per_class, INPUTS))
    hidden = rng.normal(size=(size, INPUTS))
    return np.maximum(np.concatenate([first, second]) @ hidden.T, 0), np.repeat([0, 1], per_class)


def choose_pairs(
    rng: np.random.Generator, features: np.ndarray, labels: np.ndarray, pairs: int, *, reading: Reading, between: bool
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """((h, class) of the sources, h′ of the targets); the notebook's sources are of the second class, always."""
    of = [np.flatnonzero(labels == k) for k in (0, 1)]
    if reading == "as_released":
        source, target = 1, 0
    else:
        source, target = 0, int(between)
    chosen = rng.choice(of[source], pairs, replace=False)
    rest = np.setdiff1d(of[target], chosen)
    others = rng.choice(rest, pairs, replace=False)
    return (features[chosen], labels[chosen]), features[others]


def _curves(
    flow: PenalisedFeatures, starts: np.ndarray, source: tuple[np.ndarray, np.ndarray], target: np.ndarray
) -> dict[str, Any]:
    """S_rel and loss at times(), means over starts and pairs; pair i is source i with target i."""
    runs = [flow.starting_at(w0) for w0 in starts]
    S = np.mean([np.diagonal(run.relative(times(), source, target), axis1=1, axis2=2).mean(1) for run in runs], axis=0)
    loss = np.mean([run.loss(times()) for run in runs], axis=0)
    return {"S": [float(f"{v:.7g}") for v in S], "loss": [float(f"{v:.7g}") for v in loss]}


def _all(measured: Mapping[Unit, Measured], part: str, formula: str, what: str) -> np.ndarray:
    """[seeds, t]."""
    return np.array([found["curves"][formula][what] for unit, found in measured.items() if unit.part == part])


def _times(measured: Mapping[Unit, Measured]) -> np.ndarray:
    return np.array(next(iter(measured.values()))["t"])


def _moved_cells(measured: Mapping[Unit, Measured], part: str, formula: str) -> list[Cell]:
    """How much S_rel moved from start to end, and between its least and its largest value."""
    ratios = tuple(map(float, _ratios(measured, [part], formula)))
    spans = tuple(float(S.max() / S.min()) for S in _all(measured, part, formula, "S"))
    return [
        Cell(part, END.format(NAMES[formula]), None, ratios),
        Cell(part, SPAN.format(NAMES[formula]), None, spans),
    ]


def _band(measured: Mapping[Unit, Measured], part: str, formula: str, what: str) -> Curve:
    values = _all(measured, part, formula, what)
    rows = (values.mean(0), values.min(0), values.max(0))
    mean, low, high = ([float(f"{v:.5g}") for v in row] for row in rows)
    name = f"{part}: {'S_rel' if what == 'S' else 'loss'} {NAMES[formula]}"
    return Curve(name, _times(measured).tolist(), mean, low, high)


def _phase_cells(measured: Mapping[Unit, Measured], part: str) -> list[Cell]:
    """By the formula as defined, at every draw: late against falling, and how much the notebook's formula adds."""
    found: dict[str, list[float]] = {LATE: [], RISE: [], MORE: []}
    for unit, run in measured.items():
        if unit.part == part:
            S, loss = (np.array(run["curves"]["as_defined"][what]) for what in ("S", "loss"))
            released = np.array(run["curves"]["as_released"]["S"])
            falling = loss > loss[-1] + 0.1 * (loss[0] - loss[-1])
            found[LATE].append(float(S[-1] / np.median(S[falling])))
            found[RISE].append(float(S[~falling][0] / S[0]))
            found[MORE].append(float(released[-1] / released[0] / max(S[-1] / S[0], 1.0)))
    return [Cell(part, name, None, tuple(values)) for name, values in found.items()]


def _ratios(measured: Mapping[Unit, Measured], parts: Iterable[str], formula: str) -> list[float]:
    """S_rel at the end over S_rel at the start, of every draw."""
    return [S[-1] / S[0] for part in parts for S in _all(measured, part, formula, "S")]


def _draw(measured: Mapping[Unit, Measured], part: str) -> Figure:
    """The loss, then S_rel by each formula; a thin line for each draw, a thick one for their mean."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    t, pairs = _times(measured), next(iter(measured.values()))["pairs"]
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.1)
        panels = made.subplots(1, 4)
        made.suptitle(part, fontsize=9)
        for colour, formula in zip(COLOURS, FORMULAS, strict=False):
            panels[0].plot(
                t, _all(measured, part, formula, "loss").mean(0), color=colour, linewidth=1, label=formula[3:]
            )
        panels[0].set(title="loss", yscale="log", xlabel="t")
        panels[0].legend(title="as", title_fontsize=7)
        for axes, colour, formula in zip(panels[1:], COLOURS, FORMULAS, strict=False):
            S = _all(measured, part, formula, "S") / (pairs if formula == "as_released" else 1)
            axes.plot(t, S.T, color=colour, linewidth=0.4, alpha=0.5)
            axes.plot(t, S.mean(0), color=colour, linewidth=1.5)
            axes.set(title=NAMES[formula], xlabel="t", ylim=(0, None))
        panels[1].set_ylabel("$S_{rel}$, mean over pairs")
        panels[3].set_ylabel("sum over n pairs / n²")
    return made
