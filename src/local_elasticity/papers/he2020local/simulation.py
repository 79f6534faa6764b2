"""What Figures 1, 4 and 5 share: nets trained on two manifolds, S_rel among the blue points against their distance.

The text: 100 points, half of each colour, full batch, SGD at rate 1e-5, 20000 epochs, squared loss, two-layer nets of
40960 units, and three-layer nets of 8192 on the folded boxes. At 1e-5 nets of that width diverge on the larger
manifolds; here the rate is the largest that is surely stable at the start, and ReLU and linear nets have the same. The
released code runs the spheres with a sigmoid on top, BCE and rate 3e-3 ("relu bce").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import local_elasticity as le
from local_elasticity.data.manifolds import Manifold, manifold
from local_elasticity.papers.experiment import Cell, Experiment, Measured, Reading, Scale, Settings, Unit, Values
from local_elasticity.papers.he2020local.probe import (
    kernel_of_small_steps,
    largest_stable_rate,
    relative_of_small_steps,
    resolved_sources,
)
from local_elasticity.papers.he2020local.stack import Activation
from local_elasticity.papers.he2020local.warm_up import (
    Learned,
    TrainingTask,
    WarmUpSchedule,
    learn_three_layers,
    learn_two_layers,
)
from local_elasticity.statistics.claims import Alternatives
from local_elasticity.statistics.correlation import pearson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Key = tuple[str, str]
"""A manifold and a net: "relu", "linear", "sigmoid" or "relu bce"."""

DEEPER = ("folded_boxes",)
"""Manifolds with three-layer nets (A.4)."""

TWO_DISTANCES = ("torus", "folded_boxes")
"""Manifolds on which the released distance is not the text's."""

RELEASED_RATE = 3e-3
"""Of the spheres with BCE."""


SATURATED = "not resolved: sources with saturated probabilities do not move"

WITH, WITHOUT = "correlation", "correlation without diagonal"
UNRESOLVED = "share of sources that are not resolved"
MEAN = "mean"
MOST_RESOLVED = 1 / torch.finfo(torch.float64).eps
"""A larger S_rel is rounding: beside such a change the source's own is below the last digit."""
RELEASED, RELEASED_WITHOUT = "correlation, distance as released", "correlation without diagonal, distance as released"
OF_SIMILARITY = (MEAN, WITH, WITHOUT, RELEASED, RELEASED_WITHOUT)
COMPUTED = "computed, not resolved"
"""The key of a cell under which values stay that are rounding."""


class Simulation(Experiment):
    """A subclass gives keys (manifold, net), claims and findings."""

    keys: tuple[Key, ...]
    shares = ("he2020local/fig1", "he2020local/fig4", "he2020local/fig5")
    scales: Mapping[Scale, Settings] = {
        "smoke": {"width": 256, "deeper width": 64, "epochs": 100, "nets at once": 1},
        "small": {"width": 4096, "deeper width": 512, "epochs": 2000, "nets at once": 1},
        "paper": {"width": 40960, "deeper width": 8192, "epochs": 20000, "nets at once": 15},
    }

    def parts(self, settings: Settings) -> list[str]:
        return [" ".join(key) for key in self.keys]

    def batches(self, units: Sequence[Unit], settings: Settings) -> list[list[Unit]]:
        """Nets of one kind and one depth together."""
        alike: dict[Any, list[Unit]] = {}
        for unit in units:
            name, net = key_of(unit)
            deeper = name if name in DEEPER else ""
            alike.setdefault((net, deeper, len(_points(unit).points)), []).append(unit)
        size = settings["nets at once"]
        return [group[i : i + size] for group in alike.values() for i in range(0, len(group), size)]

    def resolved(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Correlations and means of S_rel are left out at seeds whose mean S_rel is rounding; what had been computed
        stays beside them, so that the same cells come out again."""
        raw = {(cell["row"], cell["column"]): cell.get(COMPUTED, cell["values"]) for cell in cells}
        made = [dict(cell) for cell in cells]
        for cell in made:
            name, _, what = cell["row"].partition(": ")
            means = raw.get((f"{name}: {MEAN}", cell["column"]), ())
            lost = [mean is not None and mean > MOST_RESOLVED for mean in means]
            if any(lost) and what in OF_SIMILARITY:
                computed = raw[cell["row"], cell["column"]]
                known = tuple(None if gone else value for gone, value in zip(lost, computed, strict=True))
                reason = f"{SATURATED} at {sum(lost)} of {len(lost)} seeds"
                masked = Cell(
                    cell["row"], cell["column"], cell["paper"], known, cell.get("tolerance", 0.0), reason=reason
                )
                cell.update({**masked.as_json(), COMPUTED: computed})
        return made

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        return dict(self.measure_batch([unit], settings, reading, device))[unit]

    def measure_batch(
        self, units: Sequence[Unit], settings: Settings, reading: Reading, device: str
    ) -> Iterator[tuple[Unit, Measured]]:
        points = [_points(unit) for unit in units]
        name, net = key_of(units[0])
        activation, bce = _activation(net), net.endswith("bce")
        learn = _learn_three_layers if name in DEEPER else _learn_two_layers
        start = _Start(points, units, settings, device, learn)
        rates = [RELEASED_RATE] * len(units) if bce else start.stable_rates(activation)
        schedule = WarmUpSchedule("bce of probabilities" if bce else "l2", settings["epochs"], len(points[0].points))
        learned = learn(start.tasks(rates), schedule, activation, settings, device)
        for unit, one, drawn, rate in zip(units, learned, points, rates, strict=True):
            yield unit, _found(unit, one, drawn, rate, bce)


Learn = Callable[[Sequence[TrainingTask], WarmUpSchedule, Activation, Settings, str], list[Learned]]


def _learn_two_layers(
    tasks: Sequence[TrainingTask], schedule: WarmUpSchedule, activation: Activation, settings: Settings, device: str
) -> list[Learned]:
    return learn_two_layers(tasks, schedule, width=settings["width"], activation=activation, device=device)


def _learn_three_layers(
    tasks: Sequence[TrainingTask], schedule: WarmUpSchedule, activation: Activation, settings: Settings, device: str
) -> list[Learned]:
    return learn_three_layers(tasks, schedule, width=settings["deeper width"], activation=activation, device=device)


@dataclass(frozen=True)
class _Start:
    """Nets before training."""

    points: Sequence[Manifold]
    units: Sequence[Unit]
    settings: Settings
    device: str
    learn: Learn

    def tasks(self, rates: Sequence[float]) -> list[TrainingTask]:
        return [
            TrainingTask(drawn.points.float(), drawn.labels.float(), rate, unit.seed)
            for drawn, unit, rate in zip(self.points, self.units, rates, strict=True)
        ]

    def stable_rates(self, activation: Activation) -> list[float]:
        """The largest stable rate at the initial weights; the smaller one of ReLU and linear nets for both."""
        kinds: tuple[Activation, ...] = ("sigmoid",) if activation == "sigmoid" else ("relu", "linear")
        untrained = WarmUpSchedule("l2", epochs=0, batch_size=len(self.points[0].points))
        tasks = self.tasks([0.0] * len(self.units))
        starts = [self.learn(tasks, untrained, kind, self.settings, self.device) for kind in kinds]
        return [min(largest_stable_rate(one.net, one.x) for one in nets) for nets in zip(*starts, strict=True)]


def _found(unit: Unit, learned: Learned, points: Manifold, rate: float, bce: bool) -> Measured:
    """Correlations of S_rel with the distance along the manifold, as the text has it and as released; with the
    diagonal, as published, and without.
    """
    blue = learned.x[: len(points.geodesic)]
    S = relative_of_small_steps(kernel_of_small_steps(learned.net, blue, probabilities=bce)).cpu()
    S[~resolved_sources(learned.net, blue, probabilities=bce).cpu()] = torch.nan
    released = manifold(points.name, seed=unit.seed, reading="as_released").geodesic
    apart = ~torch.eye(len(S), dtype=torch.bool)
    with torch.no_grad():
        f = learned.net(learned.x)[:, 0].cpu()
    found: dict[str, Any] = {
        "rate": rate,
        "accuracy": float(((f > (0.0 if bce else 0.5)) == (points.labels > 0.5)).double().mean()),
        UNRESOLVED: float(S.isnan().any(1).double().mean()),
        WITH: _correlation(S, points.geodesic),
        WITHOUT: _correlation(S[apart], points.geodesic[apart]),
        RELEASED: _correlation(S, released),
        RELEASED_WITHOUT: _correlation(S[apart], released[apart]),
        MEAN: _known(S.mean()),
    }
    if unit.part.endswith("relu"):
        pattern = le.activation(learned.net, blue).double().cpu()
        euclidean = torch.cdist(points.blue, points.blue)
        found |= {
            "activation": pearson(pattern.numpy(), euclidean.numpy()),
            "activation without diagonal": pearson(pattern[apart].numpy(), euclidean[apart].numpy()),
        }
    return found | _pictured(unit, S, points.geodesic)


def _correlation(S: Tensor, distance: Tensor) -> float | None:
    """Of all pairs; None where one of them is not resolved, because the others alone would be another statistic."""
    return None if S.isnan().any() else pearson(S.numpy(), distance.numpy())


def _known(value: Tensor) -> float | None:
    return float(value) if value.isfinite() else None


def _pictured(unit: Unit, S: Tensor, distance: Tensor) -> dict[str, Any]:
    """The pairs that a scatter plot shows, one of either order, of the first seed only."""
    above = torch.triu_indices(len(S), len(S), 1)
    if unit.seed:
        return {}
    return {"S": _rounded(S[above[0], above[1]]), "distance": _rounded(distance[above[0], above[1]])}


def _rounded(values: Tensor) -> list[float | None]:
    return [round(float(value), 4) if value.isfinite() else None for value in values]


def _points(unit: Unit) -> Manifold:
    return manifold(key_of(unit)[0], seed=unit.seed)


def _activation(net: str) -> Activation:
    return "linear" if net == "linear" else "sigmoid" if net == "sigmoid" else "relu"


def key_of(unit: Unit) -> Key:
    """The manifold and the net of a unit."""
    name, _, net = unit.part.partition(" ")
    return name, net


def values(measured: Mapping[Unit, Measured], key: Key, what: str) -> tuple[float | None, ...]:
    """A measured value at every seed, None where it is not resolved."""
    return tuple(found[what] for unit, found in measured.items() if key_of(unit) == key)


def cell(
    measured: Mapping[Unit, Measured], key: Key, what: str, paper: float | None = None, tolerance: float = 0.005
) -> Cell:
    """A value of one manifold and net over seeds; published ones are rounded to two digits."""
    found = values(measured, key, what)
    missing = found.count(None)
    reason = f"{SATURATED} at {missing} of {len(found)} seeds" if missing else ""
    return Cell(row_of(key, what), key[1], paper, found, tolerance, reason=reason)


def correlation_cells(measured: Mapping[Unit, Measured], key: Key, paper: float | None) -> list[Cell]:
    """With the diagonal, beside the published value, and without; for both distances where the released one differs."""
    whole, apart = [WITH], [WITHOUT]
    if key[0] in TWO_DISTANCES:
        whole, apart = [RELEASED, WITH], [RELEASED_WITHOUT, WITHOUT]
    return [cell(measured, key, what, paper) for what in whole] + [cell(measured, key, what) for what in apart]


def correlations(keys: Sequence[Key], what: str = WITHOUT) -> Callable[[Values], Alternatives]:
    """A claim's comparisons: a correlation of each manifold and net."""

    def measure(values: Values) -> Alternatives:
        return [{" ".join(key).replace("_", " "): values.of(row_of(key, what), key[1]) for key in keys}]

    return measure


def row_of(key: Key, what: str) -> str:
    return f"{key[0].replace('_', ' ')}: {what}"


def draw_panels(measured: Mapping[Unit, Measured], keys: Sequence[Key]) -> Figure:
    """S_rel against distance, the first seed's pairs: a column for each manifold, a row for each kind of net. The title
    has ρ, the mean correlation over seeds."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    manifolds, nets = (list(dict.fromkeys(key[at] for key in keys)) for at in (0, 1))
    columns = min(len(manifolds), MOST_COLUMNS)
    rows = len(nets) * -(-len(manifolds) // columns)
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.0 * rows)
        panels = made.subplots(rows, columns, squeeze=False)
        for axes in panels.flat:
            axes.set_visible(False)
        for key in keys:
            at = manifolds.index(key[0])
            axes = panels[nets.index(key[1]) + len(nets) * (at // columns), at % columns]
            axes.set_visible(True)
            known = [value for value in values(measured, key, WITHOUT) if value is not None]
            correlation = f"ρ = {round(float(np.mean(known)), 2) + 0.0:.2f}" if known else "not resolved"
            name, net = key[0].replace("_", " "), key[1].replace("relu", "ReLU").replace("bce", "BCE")
            axes.set_title(f"{name}, {net}\n{correlation}".replace("-", "−"))
            axes.set(xlabel="geodesic distance", ylabel="relative similarity")
            shown = next((found for unit, found in measured.items() if key_of(unit) == key and "S" in found), None)
            if shown:
                colour = COLOURS[("relu", "linear", "sigmoid", "relu bce").index(key[1])]
                S = np.array(shown["S"], dtype=float)
                axes.scatter(shown["distance"], S, s=2, alpha=0.4, color=colour, linewidths=0, rasterized=True)
                axes.set_ylim(0, None)
    return made


MOST_COLUMNS = 4
"""Panels in one row of a figure."""
