"""Alignment and local elasticity rise with train–unseen similarity after one step: design II, the confounded designs
beside it, several activations, noises and steps, and the controls (shuffled labels, a linear net).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, over_seeds
from local_elasticity.papers.emergence2024.sweep import (
    PROBES,
    Variant,
    columns,
    features_row,
    relative_row,
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
from local_elasticity.papers.smallest_effects import ANY, ELEVEN_RANKS, NULL_SHARE, TENTH, UNEXPLAINED
from local_elasticity.statistics.claims import Alternatives, Claim
from local_elasticity.statistics.correlation import explained, spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN, SHUFFLED = "design II, relu", "design II, shuffled labels"
VARIANTS = {
    MAIN: Variant(),
    "design II, tanh": Variant(activation="tanh"),
    "design II, erf": Variant(activation="erf"),
    "design II, linear": Variant(activation="linear"),
    SHUFFLED: Variant(shuffled=True),
    "design II, rademacher": Variant(kind="rademacher"),
    "design II, sphere": Variant(kind="sphere"),
    "design II, ball": Variant(kind="ball"),
    "design II, truncated": Variant(kind="truncated"),
    "design II, three steps": Variant(steps=3),
    "design I, relu": Variant(design="I"),
    "design IIIb, relu": Variant(design="IIIb"),
}
NOISES = ("rademacher", "sphere", "ball", "truncated")

RANK, RISE, FIT = "Spearman with |s|", "rise from t = 0 to 1", "R² of theory"
GROWTH = "S_rel ratio (within over between) at t = 1 over that at t = 0"
SPEARMAN = "Spearman's correlation with |s| over eleven values of t"


def _ranks(parts: Sequence[str], names: Sequence[str]) -> Callable[[Values], Alternatives]:
    return lambda values: [{f"{part}: {name}": values.of(f"{part}: {RANK}", name) for part in parts for name in names}]


def _unexplained(values: Values) -> Alternatives:
    return [{name: 1 - values.of(f"{MAIN}: {FIT}", name) for name in ("alignment", "elasticity")}]


def _null_shares(values: Values) -> Alternatives:
    names = ("alignment", "elasticity")
    return [
        {name: np.abs(values.of(f"{SHUFFLED}: {RISE}", name) / values.of(f"{MAIN}: {RISE}", name)) for name in names}
    ]


def _growth(part: str, *, over_before: bool) -> Callable[[Values], Alternatives]:
    def measure(values: Values) -> Alternatives:
        after, before = (values.of(f"{part}: {GROWTH}", when) for when in ("after the step", "before the step"))
        return [{part: after / before if over_before else after}]

    return measure


CLAIMS = (
    Claim(
        "alignment",
        "Intra-class features are more aligned when the train-unseen similarity is large",
        "abstract",
        SPEARMAN,
        _ranks([MAIN], ["alignment"]),
        ANY,
        scale="fisher",
        resolution=ELEVEN_RANKS,
    ),
    Claim(
        "elasticity",
        "With stronger Local Elasticity occurring under this condition",
        "abstract",
        SPEARMAN,
        _ranks([MAIN], ["elasticity"]),
        ANY,
        scale="fisher",
        resolution=ELEVEN_RANKS,
    ),
    Claim(
        "noises",
        "Non-centered sub-Gaussian data in general: the same for four other noises",
        "abstract",
        SPEARMAN,
        _ranks([f"design II, {kind}" for kind in NOISES], ["alignment", "elasticity"]),
        ANY,
        scale="fisher",
        resolution=ELEVEN_RANKS,
    ),
    Claim(
        "theory",
        "Quadrature theory gives alignment and elasticity: the geometric mean of 1 − R² over seeds is below 0.01",
        "ours",
        "1 − R² of the theory",
        _unexplained,
        UNEXPLAINED,
        "below",
        "log",
        ours=True,
    ),
    Claim(
        "relative",
        "He & Su's S_rel, within over between, grows with the similarity after the step more than before it (ReLU)",
        "ours",
        f"{GROWTH}, after the step over before",
        _growth(MAIN, over_before=True),
        TENTH,
        scale="log",
        ours=True,
    ),
    Claim(
        "shuffled",
        "Control: on shuffled labels neither rises (under a tenth of the true effect)",
        "ours",
        "rise on shuffled labels over the rise on true ones",
        _null_shares,
        NULL_SHARE,
        "below",
        "log",
        ours=True,
    ),
    Claim(
        "linear",
        "Control: in a linear net S_rel knows nothing of the step",
        "ours",
        f"{GROWTH}, after the step over before",
        _growth("design II, linear", over_before=True),
        TENTH,
        "within",
        "log",
        ours=True,
    ),
)


class Alignment(Experiment):
    name = "emergence2024/alignment"
    title = "Alignment and elasticity of unseen classes against train–unseen similarity, with theory and controls"
    claims = CLAIMS
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"d": 64, "n": 128, "width": 128, "per_class": 30, "values": 3, "probes": 4},
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
            row = {**sides(found, seen), **features_row(seen), **theory_row(found, seen)}
            rows.append({**row, **relative_row(found, seen, settings.get("probes", PROBES))})
        return columns(rows)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        return Findings(_cells(measured), _curves(measured), _figures(measured))


def _rank(run: Measured, name: str) -> float:
    return spearman(run["s"], run[name])


def _rise(run: Measured, name: str) -> float:
    return float(run[name][-1] - run[name][0])


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("alignment", "elasticity", "S_rel ratio"):
            cells.append(Cell(f"{part}: {RANK}", name, None, tuple(_rank(run, name) for run in runs)))
        for name in ("alignment", "elasticity", "centred cosine"):
            cells.append(Cell(f"{part}: {RISE}", name, None, tuple(_rise(run, name) for run in runs)))
        for when, name in (("before the step", "S_rel ratio before"), ("after the step", "S_rel ratio")):
            growth = tuple(run[name][-1] / run[name][0] for run in runs)
            cells.append(Cell(f"{part}: {GROWTH}", when, None, growth))
        for name in ("alignment", "elasticity", "separability"):
            fits = tuple(explained(run[name], run[f"theory {name}"]) for run in runs)
            cells.append(Cell(f"{part}: {FIT}", name, None, fits))
    return cells


def _curves(measured: Mapping[Unit, Measured]) -> list[Curve]:
    curves = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("alignment", "elasticity", "theory alignment", "theory elasticity", "S_rel ratio"):
            curves.append(band(f"{part}: {name}", mean_of(runs, "s"), over_seeds(runs, name)))
    return curves


def _figures(measured: Mapping[Unit, Measured]) -> dict[str, Figure]:
    return {"alignment": _draw(measured), "relative": _draw_relative(measured)}


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Alignment and elasticity, simulation (bands over seeds) and theory (dashes): designs, activations, controls."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    groups = {
        "designs": (MAIN, "design I, relu", "design IIIb, relu"),
        "activations, shuffled labels": (MAIN, "design II, tanh", "design II, erf", "design II, shuffled labels"),
        "noises and steps": (MAIN, "design II, rademacher", "design II, ball", "design II, three steps"),
    }
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 4.4)
        panels = made.subplots(2, 3, sharex=True, sharey="row", squeeze=False)
        for column, (title, parts) in enumerate(groups.items()):
            for row, name in enumerate(("alignment", "elasticity")):
                axes = panels[row, column]
                for part, colour in zip(parts, COLOURS, strict=False):
                    runs = runs_of(measured, part)
                    x = over_seeds(runs, "t").mean(0)
                    draw_band(axes, x, over_seeds(runs, name), color=colour, label=part.removeprefix("design "))
                    if "three" not in part and "shuffled" not in part:
                        axes.plot(x, mean_of(runs, f"theory {name}"), color="black", linestyle="--", linewidth=0.7)
                axes.set(ylabel=f"{name} (theory dashed)" if column == 0 else None)
            panels[0, column].set_title(title)
            panels[0, column].legend()
            panels[1, column].set_xlabel("t: 0 across the task, 1 along it")
    return made


def _draw_relative(measured: Mapping[Unit, Measured]) -> Figure:
    """S_rel within over between: flat before the step, in a linear net, and on shuffled labels."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, ONE_COLUMN, STYLE, figure

    lines = {
        "relu, before the step": (MAIN, "S_rel ratio before"),
        "relu, after": (MAIN, "S_rel ratio"),
        "tanh, after": ("design II, tanh", "S_rel ratio"),
        "linear, after": ("design II, linear", "S_rel ratio"),
        "shuffled labels, after": ("design II, shuffled labels", "S_rel ratio"),
    }
    with mpl.rc_context(STYLE):
        made = figure(ONE_COLUMN, 2.8)
        axes = made.subplots()
        for (label, (part, name)), colour in zip(lines.items(), ("0.6", *COLOURS), strict=False):
            runs = runs_of(measured, part)
            draw_band(axes, mean_of(runs, "t"), over_seeds(runs, name), color=colour, label=label)
        axes.set(yscale="log", xlabel="t: 0 across the task, 1 along it", ylabel="$S_{rel}$ within / between")
        axes.legend()
    return made
