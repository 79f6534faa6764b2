"""Metric learning with a proxy and a triplet loss: alignment and Recall@1 of classes never trained on, along training.

A small CNN on five digits of MNIST, noisy and clean, watched on the other five; at paper scale also a ResNet-20 on five
classes of CIFAR-10, watched on the other five and on ten of CIFAR-100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from local_elasticity.papers.emergence2024.judging import band, draw_band, over_seeds
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
from local_elasticity.papers.smallest_effects import ANY, NO_RISE
from local_elasticity.statistics.claims import Alternatives, Claim, NotMeasuredError
from local_elasticity.statistics.correlation import pearson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = ("proxy", "triplet")
DIGITS, PHOTOGRAPHS = ("noisy MNIST", "clean MNIST"), "CIFAR-10"

FORMS = ("centred cosine", "cosine", "alignment")
"""Alignment as it may be read: of centred features, of features, and A = E⟨F, F′⟩/N as the page defines it."""

WITH_RECALL, GAIN = "correlation with Recall@1", "gain of Recall@1"
PEARSON = "Pearson's correlation of alignment with Recall@1 over training, both losses"


def _correlations(start: str, form: str) -> Callable[[Values], Alternatives]:
    def measure(values: Values) -> Alternatives:
        rows = [row for row, column in values.cells if row.startswith(start) and column == form]
        if not rows:
            raise NotMeasuredError(f"{start}: no values; run the experiment again")
        return [{row.removesuffix(f": {WITH_RECALL}"): values.of(row, form) for row in rows}]

    return measure


def _gains(values: Values) -> Alternatives:
    rows = [row for row, column in values.cells if row.startswith(DIGITS[1]) and column == GAIN]
    return [{row: values.of(row, GAIN) for row in rows}]


def _correlate(name: str, start: str, form: str, sentence: str, *, ours: bool = True) -> Claim:
    measure = _correlations(start, form)
    return Claim(name, sentence, "abstract", f"{PEARSON}; {form}", measure, ANY, scale="fisher", ours=ours)


CLAIMS = (
    *(
        _correlate(
            f"{data}_{form.replace(' ', '_')}",
            start,
            form,
            f"Alignment and Recall@1 exhibit a positive correlation in metric learning ({start}; {form})",
            ours=False,
        )
        for data, start in zip(("noisy", "clean"), DIGITS, strict=True)
        for form in FORMS
    ),
    *(
        _correlate(
            f"resnet_{form.replace(' ', '_')}",
            PHOTOGRAPHS,
            form,
            f"The same in ResNet-20 on CIFAR-10, unseen classes of CIFAR-10 and CIFAR-100 ({form})",
        )
        for form in FORMS
    ),
    Claim(
        "clean",
        "Control: on clean MNIST training gains no Recall@1 on unseen digits",
        "ours",
        "Recall@1 after training less before",
        _gains,
        NO_RISE,
        "below",
        ours=True,
    ),
)


class MetricLearning(Experiment):
    name = "emergence2024/metric_learning"
    title = "Alignment and Recall@1 of unseen classes along metric learning: small CNN on MNIST, ResNet-20 on CIFAR"
    claims = CLAIMS
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
        return Findings(_cells(tables), _curves(tables), {"metric_learning": _draw(tables)})


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
            cells.append(Cell(f"{part}: {WITH_RECALL}", name, None, values))
        cells.append(Cell(part, "Recall@1 before training", None, tuple(run["recall"][0] for run in runs)))
        cells.append(Cell(part, GAIN, None, tuple(_gain(run) for run in runs)))
    return cells


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
