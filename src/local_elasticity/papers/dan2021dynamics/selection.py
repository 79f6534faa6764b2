"""The step before Figures 1, 2 and 14: train on all classes, and take the three with the best class accuracy.

The files at hand hold part of each dataset (all ten classes of SVHN and CIFAR-10, ten of CIFAR-100's hundred, among
them the paper's three), so that a class accuracy stands on few images; how much the choice depends on the seed is part
of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from local_elasticity.papers.dan2021dynamics.classifier import adam, batches, network, prepare, train_step
from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
    not_at_hand,
    runs_of,
)
from local_elasticity.papers.smallest_effects import ALL_THREE
from local_elasticity.statistics.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHOSEN = {"svhn": (0, 2, 4), "cifar10": (0, 1, 8), "cifar100": (48, 53, 94)}
"""The paper's three classes."""

TOP = 3
SHARED = "{}: of the paper's three, among our best three"
STATISTIC = "how many of the paper's three classes are among our best three"
BEST_THREE = Claim(
    "best_three",
    "Identify the top-3 classes with the highest class-wise accuracy: SVHN 0, 2, 4; CIFAR-10 plane, car, ship; "
    "CIFAR-100 motorcycle, orange, wardrobe",
    "§2.1",
    STATISTIC,
    not_at_hand(
        "the sentence is about all images and classes; 600 images a class of SVHN, 1000 of CIFAR-10 and ten of the "
        "hundred classes of CIFAR-100 are at hand"
    ),
    ALL_THREE,
    resolution=1.0,
)
AT_HAND = Claim(
    "best_three_at_hand",
    "The same with the images and classes that are at hand",
    "§2.1",
    STATISTIC,
    lambda values: [{part: values.of(SHARED.format(part)) for part in CHOSEN}],
    ALL_THREE,
    resolution=1.0,
    ours=True,
)


class Selection(Experiment):
    name = "dan2021dynamics/selection"
    title = "Class accuracies of ResNet-18 on all classes: which three are best"
    claims = (BEST_THREE, AT_HAND)
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"packaged": True, "per_class": 20, "width": 4, "epochs": 1},
        "small": {"packaged": False, "per_class": 300, "width": 12, "epochs": 8},
        "paper": {"packaged": False, "per_class": None, "width": 64, "epochs": 20},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(CHOSEN)

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        import local_elasticity as le

        dataset = "digits" if settings["packaged"] else unit.part
        classes = tuple(sorted(le.data.load(dataset).y_train.unique().tolist()))
        split = prepare(dataset, classes, settings["per_class"], unit.seed, device)
        net = network(len(classes), split.x_train.shape[1], settings["width"], unit.seed, device)
        optimizer = adam(net)
        for x, y in batches(split, settings["epochs"], unit.seed):
            train_step(net, optimizer, x, y)
        with torch.no_grad():
            right = torch.cat([net(x) for x in split.x_test.split(512)]).argmax(1) == split.y_test
        accuracy = [float(right[split.y_test == place].double().mean()) for place in range(len(classes))]
        return {"classes": list(classes), "accuracy": accuracy, "images": split.origin}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        cells = []
        for part, chosen in CHOSEN.items():
            runs = runs_of(measured, part)
            shared = tuple(float(len(set(best(run)) & set(chosen))) for run in runs)
            cells.append(Cell(SHARED.format(part), "", float(TOP), shared))
            if runs:
                cells += [
                    Cell(f"{part}: accuracy", f"class {label}", None, tuple(run["accuracy"][place] for run in runs))
                    for place, label in enumerate(runs[0]["classes"])
                ]
        return Findings(cells, figures={"accuracies": _draw(measured)})


def best(run: Measured) -> list[int]:
    """The three classes with the best accuracy, the best first."""
    return [run["classes"][place] for place in np.argsort(-np.array(run["accuracy"]), kind="stable")[:TOP]]


def _draw(measured: Mapping[Unit, Measured]) -> Figure:
    """Class accuracies, a dot for each seed; the paper's classes in colour."""
    import matplotlib as mpl

    from local_elasticity.report.figures import COLOURS, STYLE, TWO_COLUMNS, figure

    with mpl.rc_context(STYLE):
        made = figure(TWO_COLUMNS, 2.2)
        for axes, (part, chosen) in zip(made.subplots(1, len(CHOSEN), sharey=True), CHOSEN.items(), strict=True):
            for run in runs_of(measured, part):
                names = [str(label) for label in run["classes"]]
                colours = [COLOURS[1] if label in chosen else COLOURS[0] for label in run["classes"]]
                axes.scatter(names, run["accuracy"], s=8, c=colours)
            axes.set(title=part, xlabel="class")
        made.axes[0].set_ylabel("test accuracy")
    return made
