"""Alignment and local elasticity rise with train–unseen similarity after one step: design II, the confounded designs
beside it, several activations, noises and steps, and the controls (shuffled labels, a linear net).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from local_elasticity.papers.emergence2024.judging import band, draw_band, mean_of, over_seeds, said
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
from local_elasticity.statistics.correlation import explained, spearman

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAIN = "design II, relu"
VARIANTS = {
    MAIN: Variant(),
    "design II, tanh": Variant(activation="tanh"),
    "design II, erf": Variant(activation="erf"),
    "design II, linear": Variant(activation="linear"),
    "design II, shuffled labels": Variant(shuffled=True),
    "design II, rademacher": Variant(kind="rademacher"),
    "design II, sphere": Variant(kind="sphere"),
    "design II, ball": Variant(kind="ball"),
    "design II, truncated": Variant(kind="truncated"),
    "design II, three steps": Variant(steps=3),
    "design I, relu": Variant(design="I"),
    "design IIIb, relu": Variant(design="IIIb"),
}
NOISES = ("rademacher", "sphere", "ball", "truncated")

ALIGNMENT = Claim(
    "alignment", "[P] Features of an unseen class are more aligned where its train–unseen similarity is larger"
)
ELASTICITY = Claim("elasticity", "[P] Local elasticity is stronger under the same condition")
THEORY = Claim("theory", "[I] Quadrature theory gives alignment and elasticity: R² above 0.99 on the mean over seeds")
NOISE = Claim("noises", "[P] Non-centred sub-Gaussian data in general: the same for four other noises")
RELATIVE = Claim(
    "relative", "[I] He & Su's S_rel, within over between, grows with the similarity after the step (ReLU)"
)
NULL = Claim("shuffled", "[I] Control: on shuffled labels neither rises (under a tenth of the true effect)")
LINEAR = Claim("linear", "[I] Control: in a linear net S_rel knows nothing of the step, though alignment rises")


class Alignment(Experiment):
    name = "emergence2024/alignment"
    title = "Alignment and elasticity of unseen classes against train–unseen similarity, with theory and controls"
    claims = (ALIGNMENT, ELASTICITY, THEORY, NOISE, RELATIVE, NULL, LINEAR)
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
        return Findings(_cells(measured), _judge(measured), _curves(measured), _figures(measured))


def _rank(run: Measured, name: str) -> float:
    return spearman(run["s"], run[name])


def _rise(run: Measured, name: str) -> float:
    return float(run[name][-1] - run[name][0])


def _cells(measured: Mapping[Unit, Measured]) -> list[Cell]:
    cells = []
    for part in VARIANTS:
        runs = runs_of(measured, part)
        for name in ("alignment", "elasticity", "S_rel ratio"):
            cells.append(Cell(f"{part}: Spearman with |s|", name, None, tuple(_rank(run, name) for run in runs)))
        for name in ("alignment", "elasticity", "centred cosine"):
            cells.append(Cell(f"{part}: rise from t = 0 to 1", name, None, tuple(_rise(run, name) for run in runs)))
        for name in ("alignment", "elasticity", "separability"):
            fits = tuple(explained(run[name], run[f"theory {name}"]) for run in runs)
            cells.append(Cell(f"{part}: R² of theory", name, None, fits))
    return cells


def _judge(measured: Mapping[Unit, Measured]) -> list[Claim]:
    main = runs_of(measured, MAIN)
    return [
        _rises(ALIGNMENT, main, "alignment"),
        _rises(ELASTICITY, main, "elasticity"),
        _theory(main),
        _noises(measured),
        _relative(main, runs_of(measured, "design II, tanh")),
        _null(main, runs_of(measured, "design II, shuffled labels")),
        _linear(runs_of(measured, "design II, linear")),
    ]


def _rises(claim: Claim, runs: list[Measured], name: str) -> Claim:
    ranks = [_rank(run, name) for run in runs]
    evidence = f"Spearman with |s|, each seed, wanted above 0.95: {said(ranks)}"
    return claim.judged([rank > 0.95 for rank in ranks], ranks, evidence)


def _theory(runs: list[Measured]) -> Claim:
    fit = {
        name: explained(mean_of(runs, name), mean_of(runs, f"theory {name}")) for name in ("alignment", "elasticity")
    }
    each = {name: said(explained(run[name], run[f"theory {name}"]) for run in runs) for name in fit}
    evidence = "; ".join(f"{name}: {fit[name]:.4f} on the mean, {each[name]} seed by seed" for name in fit)
    return THEORY.judged([value > 0.99 for value in fit.values()], min(fit.values()), evidence)


def _noises(measured: Mapping[Unit, Measured]) -> Claim:
    ranks = {
        kind: [
            _rank(run, name) for run in runs_of(measured, f"design II, {kind}") for name in ("alignment", "elasticity")
        ]
        for kind in NOISES
    }
    evidence = "; ".join(f"{kind}: Spearman {said(values)}" for kind, values in ranks.items())
    everything = [rank for values in ranks.values() for rank in values]
    return NOISE.judged([rank > 0.95 for rank in everything], everything, evidence)


def _relative(runs: list[Measured], tanh: list[Measured]) -> Claim:
    before, after = ([run[name][-1] / run[name][0] for run in runs] for name in ("S_rel ratio before", "S_rel ratio"))
    gains = [b / a for a, b in zip(before, after, strict=True)]
    evidence = (
        f"ratio at t = 1 over that at t = 0: {said(after)} after the step, {said(before)} before it; "
        f"Spearman with |s| {said(_rank(run, 'S_rel ratio') for run in runs)}; with tanh, whose σ′ is even and so "
        f"knows no sides, {said(run['S_rel ratio'][-1] / run['S_rel ratio'][0] for run in tanh)} after the step"
    )
    return RELATIVE.judged([gain > 1.1 for gain in gains], gains, evidence)


def _null(main: list[Measured], shuffled: list[Measured]) -> Claim:
    names = ("alignment", "elasticity")
    shares = {
        name: [abs(_rise(null, name) / _rise(run, name)) for run, null in zip(main, shuffled, strict=True)]
        for name in names
    }
    evidence = "; ".join(f"{name}: {said(shares[name])} of the true rise" for name in names)
    everything = [share for name in names for share in shares[name]]
    return NULL.judged([share < 0.1 for share in everything], everything, evidence)


def _linear(runs: list[Measured]) -> Claim:
    changes = [float(np.abs(np.array(run["S_rel ratio"]) / run["S_rel ratio before"] - 1).max()) for run in runs]
    evidence = (
        f"largest relative change of S_rel within over between: {max(changes):.1e}; "
        f"alignment rises by {said(_rise(run, 'alignment') for run in runs)}"
    )
    return LINEAR.judged([change < 1e-3 for change in changes], max(changes), evidence)


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
