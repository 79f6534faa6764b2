"""Metric learning with a proxy and a triplet loss: alignment and Recall@1 of classes never trained on, along training.

A small CNN on five digits of MNIST, noisy and clean, watched on the other five; at paper scale also a ResNet-20 on five
classes of CIFAR-10, watched on the other five and on ten of CIFAR-100.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from local_elasticity.papers.emergence2024.judging import band, draw_band, over_seeds, said
from local_elasticity.papers.emergence2024.metric_training import (
    PIXEL_NOISE,
    digits,
    loss_named,
    photographs,
    residual_net,
    seeded,
    small_cnn,
    train_and_watch,
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
from local_elasticity.statistics.correlation import pearson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = ("proxy", "triplet")
DIGITS, PHOTOGRAPHS = ("noisy MNIST", "clean MNIST"), "CIFAR-10"

CORRELATION = Claim(
    "correlation", "[P] Alignment and Recall@1 on unseen classes correlate in metric learning (noisy MNIST)"
)
RAW = Claim("raw_cosine", "[I] It is the centred cosine that carries it: the raw cosine correlates the other way")
CLEAN = Claim("clean", "[I] Control: on clean MNIST training gains no Recall@1 on unseen digits")
RESNET = Claim(
    "resnet", "[P] The same in a deeper net: ResNet-20 on CIFAR-10, unseen classes of CIFAR-10 and CIFAR-100"
)


class MetricLearning(Experiment):
    name = "emergence2024/metric_learning"
    title = "Alignment and Recall@1 of unseen classes along metric learning: small CNN on MNIST, ResNet-20 on CIFAR"
    claims = (CORRELATION, RAW, CLEAN, RESNET)
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"per_class": 20, "unseen": 10, "steps": 6, "batch": 20, "photographs": None},
        "small": {"per_class": 400, "unseen": 100, "steps": 300, "batch": 60, "photographs": None},
        "paper": {
            "per_class": 1000,
            "unseen": 200,
            "steps": 600,
            "batch": 100,
            "photographs": {"per_class": 1000, "unseen": 200, "steps": 400, "batch": 200},
        },
    }

    def parts(self, settings: Settings) -> list[str]:
        sets = [*DIGITS, PHOTOGRAPHS] if settings["photographs"] else DIGITS
        return [f"{name}, {loss}" for name in sets for loss in LOSSES]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        name, loss = unit.part.split(", ")
        if name == PHOTOGRAPHS:
            settings = settings["photographs"]
            images, net = photographs(settings, unit.seed), seeded(residual_net, unit.seed)
        else:
            noise = PIXEL_NOISE if name == DIGITS[0] else 0.0
            images, net = digits(settings, noise, unit.seed), seeded(small_cnn, unit.seed)
        classes = int(images.seen[1].max()) + 1
        function, more = loss_named(loss, classes, unit.seed, device)
        options = {"steps": settings["steps"], "batch": settings["batch"], "seed": unit.seed}
        return train_and_watch(net.to(device), function, more, images.to(device), **options)

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        tables = by_set(measured)
        return Findings(_cells(tables), _judge(tables), _curves(tables), {"metric_learning": _draw(tables)})


Tables = dict[str, list[Measured]]


def by_set(measured: Mapping[Unit, Measured]) -> Tables:
    """What was seen along training, a seed after another, by part and unseen set."""
    parts = dict.fromkeys(unit.part for unit in measured)
    tables: Tables = {}
    for part in parts:
        for run in runs_of(measured, part):
            for name, table in run.items():
                tables.setdefault(f"{part}: {name}", []).append(table)
    return tables


def _correlation(table: Measured, name: str) -> float:
    """Over the moments of training."""
    return pearson(table[name], table["recall"])


def _gain(table: Measured) -> float:
    return float(table["recall"][-1] - table["recall"][0])


def _cells(tables: Tables) -> list[Cell]:
    cells = []
    for part, runs in tables.items():
        for name in ("centred cosine", "cosine", "alignment", "elasticity"):
            values = tuple(_correlation(run, name) for run in runs)
            cells.append(Cell(f"{part}: correlation with Recall@1", name, None, values))
        cells.append(Cell(part, "Recall@1 before training", None, tuple(run["recall"][0] for run in runs)))
        cells.append(Cell(part, "gain of Recall@1", None, tuple(_gain(run) for run in runs)))
    return cells


def _chosen(tables: Tables, start: str) -> Tables:
    return {part: runs for part, runs in tables.items() if part.startswith(start)}


def _judge(tables: Tables) -> list[Claim]:
    noisy, clean = (_chosen(tables, name) for name in DIGITS)
    gains = {part: [_gain(run) for run in runs] for part, runs in clean.items()}
    everything = [gain for values in gains.values() for gain in values]
    return [
        _correlates(CORRELATION, noisy),
        _raw(noisy),
        CLEAN.judged(
            [gain < 0.02 for gain in everything],
            everything,
            "gain: " + "; ".join(f"{part} {said(values)}" for part, values in gains.items()),
        ),
        _correlates(RESNET, _chosen(tables, PHOTOGRAPHS)),
    ]


def _correlates(claim: Claim, tables: Tables) -> Claim:
    found = {part: [_correlation(run, "centred cosine") for run in runs] for part, runs in tables.items()}
    everything = [value for values in found.values() for value in values]
    if not everything:
        return claim
    evidence = "centred cosine with Recall@1 over training, each seed, wanted above 0.8: "
    evidence += "; ".join(f"{part} {said(values)}" for part, values in found.items())
    return claim.judged([value > 0.8 for value in everything], everything, evidence)


def _raw(tables: Tables) -> Claim:
    found = {part: [_correlation(run, "cosine") for run in runs] for part, runs in tables.items()}
    everything = [value for values in found.values() for value in values]
    evidence = "raw cosine with Recall@1: " + "; ".join(f"{part} {said(values)}" for part, values in found.items())
    return RAW.judged([value < 0 for value in everything], everything, evidence)


def _curves(tables: Tables) -> list[Curve]:
    return [
        band(f"{part}: {name}", over_seeds(runs, "step")[0], over_seeds(runs, name))
        for part, runs in tables.items()
        for name in ("recall", "centred cosine", "cosine")
    ]


def _draw(tables: Tables) -> Figure:
    """Recall@1, centred and raw cosine along training, a panel for every set and loss."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    rows = (len(tables) + 1) // 2
    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 1.9 * rows)
        panels = made.subplots(rows, 2, squeeze=False, sharex=True)
        for axes, (part, runs) in zip(panels.flat, tables.items(), strict=False):
            step = over_seeds(runs, "step")[0] + 1
            for name, colour in zip(("recall", "centred cosine", "cosine"), COLOURS, strict=False):
                label = {"recall": "Recall@1", "cosine": "raw cosine"}.get(name, name)
                draw_band(axes, step, over_seeds(runs, name), color=colour, label=label)
            axes.set(xscale="log", title=part, ylim=(-0.05, 1.05))
        made.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        for axes in panels[-1]:
            axes.set_xlabel("step + 1")
    return made
