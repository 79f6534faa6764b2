"""Figures 1, 2 and 14 to 17: S_rel of all nine class pairs while a classifier trains, by definition and as released.

One training run is probed with both steps (SGD, a fresh Adam) under every reading of S_rel, so that the panels

    Definition 2, SGD · Definition 1, SGD · Definition 2, fresh Adam · Definitions 2 and 1 as released, fresh Adam

stand side by side in any reading. Definition 2 with SGD is read by pair of classes and pooled, at training and held-out
points, at the smallest test loss and at the end of either arm (see `classifier`). What `as_released` adds is the loss
and the accuracy that the notebooks show: they read the training set where they say test set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from local_elasticity.papers.dan2021dynamics.claims import ARMS, MEDIANS, MOMENTS, POINTS, Runs, cells, claims_of
from local_elasticity.papers.dan2021dynamics.classifier import prepare, watched
from local_elasticity.papers.experiment import (
    Cell,
    Curve,
    Experiment,
    Findings,
    Measured,
    Reading,
    Scale,
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


def scales_of(dataset: str, small: Settings, paper: Settings) -> dict[Scale, Settings]:
    """The settings of every scale, from those in which the datasets differ.

    >>> scales_of("svhn-0-2-4", {"per_class": 1000, "epochs": 7, "probes": 8}, {"probes": 21})["paper"]["epochs"]
    7
    """
    smoke = {"dataset": "digits", "per_class": 40, "points": 3, "width": 2, "epochs": 1, "steps": 3, "probes": 1}
    return {
        "smoke": smoke,
        "small": {"dataset": dataset, "points": 10, "width": 12, "steps": 110, **small},
        "paper": {"dataset": dataset, "per_class": None, "points": 20, "width": 64, "epochs": 7, **paper},
    }


class Classification(Experiment):
    """What the three datasets share; a subclass names its images, its classes and the accuracy that is quoted."""

    dataset: str
    classes: Mapping[str, int]
    accuracy: float
    claims = claims_of(ARMS)
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
        from local_elasticity.papers.dan2021dynamics.drawing import draw_locality, draw_panels, draw_progress

        runs = Runs(list(measured.values()))
        figures = {
            "locality": draw_locality(runs),
            "panels": draw_panels(runs, PANELS, "mean"),
            "panels without self-pairs": draw_panels(runs, PANELS, "median apart"),
            "loss and accuracy": draw_progress(runs),
        }
        accuracy = runs.at(runs.curves("accuracy"), "epochs", "end").tolist()
        quoted = Cell("accuracy at the end", "epochs", self.accuracy, tuple(accuracy), tolerance=0.005)
        return Findings([quoted, *cells(runs), *_pair_cells(runs)], _curves(runs), figures)


def _pair_cells(runs: Runs) -> list[Cell]:
    """Definition 2 by pair of classes at every moment, medians without self-pairs. Intervals are over runs; those over
    probe points are in the units."""
    made = []
    for points in POINTS:
        tables = runs.values("sgd", "kl", MEDIANS, points)
        for arm in ARMS:
            for moment in MOMENTS:
                found = runs.at(tables, arm, moment)
                for (i, j), pair in _pairs(runs.classes):
                    row, column = f"Definition 2, SGD, {points} points: S({pair})", f"{arm}, {moment}"
                    made.append(Cell(row, column, None, tuple(found[:, i, j].tolist()), scale="log"))
    return made


def _pairs(classes: Sequence[str]) -> list[tuple[tuple[int, int], str]]:
    return [((i, j), f"{a}, {b}") for i, a in enumerate(classes) for j, b in enumerate(classes)]


def _curves(runs: Runs) -> list[Curve]:
    steps = runs.steps.tolist()
    curves = [Curve(name, steps, *_band(runs.curves(name))) for name in ("test loss", "test accuracy")]
    for points in POINTS:
        own, other = (runs.values("sgd", "kl", name, points) for name in ("within", "between"))
        curves.append(Curve(f"Definition 2, SGD, {points} points: other/own", steps, *_band(other / own)))
    for title, (step, measure) in PANELS.items():
        values = runs.values(step, measure, "mean")
        for (i, j), pair in _pairs(runs.classes):
            curves.append(Curve(f"{title}: {pair.replace(', ', ' to ')}", steps, *_band(values[:, :, i, j])))
    return curves


def _band(values: np.ndarray) -> list[list[float]]:
    """Mean, and one standard deviation below and above it."""
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    return [(mean + sign * sd).round(5).tolist() for sign in (0, -1, 1)]
