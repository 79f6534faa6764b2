"""Figures 1, 2 and 14 to 17: S_rel of all nine class pairs while a classifier trains, by definition and as released.

One training run is probed with both steps (SGD, a fresh Adam) under every reading of S_rel, so that the panels

    Definition 2, SGD · Definition 1, SGD · Definition 2, fresh Adam · Definitions 2 and 1 as released, fresh Adam

stand side by side in any reading. What `as_released` adds is the loss and the accuracy that the notebooks show: they
read the training set where they say test set.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from local_elasticity.papers.dan2021dynamics.claims import CLAIMS, START, Runs, judge
from local_elasticity.papers.dan2021dynamics.classifier import prepare, watched
from local_elasticity.papers.experiment import (
    Cell,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Settings,
    Unit,
)

PANELS = {
    "Definition 2 (KL), SGD": ("sgd", "kl"),
    "Definition 1 (L1), SGD": ("sgd", "l1"),
    "Definition 2 (KL), fresh Adam": ("adam", "kl"),
    "Definition 2, as released, fresh Adam": ("adam", "released_kl"),
    "Definition 1, as released, fresh Adam": ("adam", "released_l1"),
}
"""Title → probing step and measure."""


class Classification(Experiment):
    """What the three datasets share; a subclass names its images, its classes and the accuracy that is quoted."""

    dataset: str
    classes: Mapping[str, int]
    accuracy: float
    claims = CLAIMS
    readings = ("as_defined", "as_released")

    def parts(self, settings: Settings) -> list[str]:
        return ["training"]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        packaged = settings["dataset"] == "digits"
        classes = (0, 1, 2) if packaged else tuple(self.classes.values())
        split = prepare(settings["dataset"], classes, settings["per_class"], unit.seed, device)
        found = watched(split, settings, unit.seed, device)
        read = "train" if reading == "as_released" else "test"
        return {
            **found,
            "classes": list(self.classes),
            "loss": found[f"{read} loss"],
            "accuracy": found[f"{read} accuracy"],
        }

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        from local_elasticity.papers.dan2021dynamics.drawing import draw_panels, draw_progress

        runs = Runs.of(list(measured.values()))
        figures = {
            "panels": draw_panels(runs, PANELS, "mean"),
            "panels without self-pairs": draw_panels(runs, PANELS, "median apart"),
            "loss and accuracy": draw_progress(runs),
        }
        return Findings(self._cells(runs), judge(runs), _curves(runs), figures)

    def _cells(self, runs: Runs) -> list[Cell]:
        cells = [Cell("accuracy at the end", "", self.accuracy, tuple(runs.accuracy[:, -1].tolist()), tolerance=0.005)]
        start = runs.values("adam", "released_kl", "mean")[:, 0]
        for i, source in enumerate(runs.classes):
            for j, target in enumerate(runs.classes):
                row = f"Definition 2, as released, fresh Adam, first probe: {source} to {target}"
                cells.append(Cell(row, "Definition 3", START, tuple(start[:, i, j].tolist()), tolerance=0.02))
        for title, (step, measure) in PANELS.items():
            for reduction, column in (("mean", "Definition 3"), ("median apart", "median without self-pairs")):
                for name, value in runs.late(step, measure, reduction).items():
                    cells.append(Cell(f"{title}, late: {name}", column, None, tuple(value.tolist())))
        return cells


def _curves(runs: Runs) -> list[Curve]:
    curves = []
    for title, (step, measure) in PANELS.items():
        values = runs.values(step, measure, "mean")
        mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
        for i, source in enumerate(runs.classes):
            for j, target in enumerate(runs.classes):
                band = [(mean + sign * sd)[:, i, j].round(5).tolist() for sign in (0, -1, 1)]
                curves.append(Curve(f"{title}: {source} to {target}", runs.steps.tolist(), *band))
    return curves
