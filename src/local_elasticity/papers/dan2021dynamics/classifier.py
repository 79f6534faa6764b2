"""The classifier of §2.1 in training: ResNet-18 without batch norm, probed as it goes. All panels from one run.

The released notebooks' settings: Adam at 1e-4 with weight decay 1e-4, batches of 256, 7 epochs, one random crop and
flip of every image at loading, channels normalised.

The files at hand hold fewer images than the paper had, so its number of epochs and its number of steps are two
different places in training. The rate is constant, so one run passes both: the arm `epochs` is the first part of the
arm `steps`. Each arm has two moments, the probe with the smallest test loss and its end. Probe points come from the
training set and from the test set, drawn anew for every seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.engine.update import Update
from local_elasticity.models.resnet18 import ResNet18
from local_elasticity.papers.dan2021dynamics.readings import DEFINED, MEASURES, rounded, smoothed
from local_elasticity.papers.experiment import Settings
from local_elasticity.statistics.class_pairs import pair_rows
from local_elasticity.statistics.locality import locality
from local_elasticity.training.schedule import Listed

RATE = WEIGHT_DECAY = 1e-4
BATCH = 256
CROP = 4
"""Pixels that a crop may be shifted by, each way."""

EVALUATED = 1500
"""Images of the training set that its loss and accuracy are read from."""

RESAMPLES = 200
"""Of the bootstrap intervals at the moments."""

STEPS: dict[str, Update] = {"sgd": le.SGD(RATE), "adam": le.Adam(RATE, weight_decay=WEIGHT_DECAY)}
"""The probing step: of the definition (SGD), and of the notebooks (a fresh Adam)."""

POINTS = ("training", "held out")
PROBED = (("training", "sgd", MEASURES), ("training", "adam", MEASURES), ("held out", "sgd", DEFINED))
"""Probe points, step, and what is measured. The notebooks' step is taken where the notebooks take it, on training
points."""

ENGINES = {"cpu": {"sgd": "auto", "adam": "auto"}, "cuda": {"sgd": "structured", "adam": "vmapped"}}
"""All exact. On a GPU the fastest is known, and no race is needed."""


@dataclass(frozen=True)
class Split:
    """Images of the chosen classes, normalised, with labels 0, 1, …; those of training cropped and flipped once."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    origin: str
    """The name of the file or package. Results are published, so that it names no folder."""


def prepare(dataset: str, classes: tuple[int, ...], per_class: int | None, seed: int, device: str) -> Split:
    """Read the images of some classes, the first `per_class` of each in training, all for testing."""
    images = le.data.load(dataset)
    generator = torch.Generator().manual_seed(seed)
    x_train, y_train = _chosen(images.x_train, images.y_train, classes, per_class)
    x_test, y_test = _chosen(images.x_test, images.y_test, classes, None)
    mean = x_train.mean((0, 2, 3), keepdim=True)
    sd = x_train.std((0, 2, 3), keepdim=True)
    baked = cropped_and_flipped((x_train - mean) / sd, generator)
    x_test = (x_test - mean) / sd
    origin = Path(images.origin).name
    return Split(baked.to(device), y_train.to(device), x_test.to(device), y_test.to(device), origin)


def _chosen(x: Tensor, y: Tensor, classes: tuple[int, ...], per_class: int | None) -> tuple[Tensor, Tensor]:
    rows = [torch.nonzero(y == label).flatten()[:per_class] for label in classes]
    labels = torch.cat([torch.full((len(found),), place) for place, found in enumerate(rows)])
    return x[torch.cat(rows)].float() / 255, labels


def cropped_and_flipped(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every image shifted by up to `CROP` pixels, zeros coming in, and half of them mirrored."""
    size = x.shape[-1]
    wide = F.pad(x, (CROP,) * 4)
    down, right = (torch.randint(0, 2 * CROP + 1, (len(x), 1), generator=generator) for _ in range(2))
    rows, columns = down + torch.arange(size), right + torch.arange(size)
    flipped = torch.rand(len(x), 1, generator=generator) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    examples = torch.arange(len(x))[:, None, None]
    return wide.permute(0, 2, 3, 1)[examples, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def network(outputs: int, channels: int, width: int, seed: int, device: str) -> ResNet18:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet18(outputs, channels=channels, width=width).to(device)


def batches(split: Split, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches, the last incomplete one of an epoch left out where there are others."""
    generator = torch.Generator().manual_seed(seed)
    size = min(BATCH, len(split.x_train))
    for _ in range(epochs):
        order = torch.randperm(len(split.x_train), generator=generator).to(split.x_train.device)
        for rows in order[: len(order) // size * size].split(size):
            yield split.x_train[rows], split.y_train[rows]


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(net(x), y).backward()
    optimizer.step()


def adam(net: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)


def watched(split: Split, settings: Settings, seed: int, device: str) -> dict[str, Any]:
    """Train, and probe with both steps under every measure: JSON values over time."""
    outputs = int(split.y_train.max()) + 1
    net = network(outputs, split.x_train.shape[1], settings["width"], seed, device)
    optimizer = adam(net)
    steps_per_epoch = len(split.x_train) // min(BATCH, len(split.x_train))
    arms = {"epochs": settings["epochs"] * steps_per_epoch}
    arms["steps"] = max(settings["steps"], arms["epochs"])
    due = _due(arms, settings["probes"])
    monitors = {
        (points, name): le.Monitor(
            net,
            _points(split, points, settings["points"], outputs, seed),
            loss="cross_entropy",
            measure=measures,
            update=STEPS[name],
            schedule=Listed(due),
            budget=None,
            engine=ENGINES[device.partition(":")[0]][name],
            memory=None,
        )
        for points, name, measures in PROBED
    }
    progress: dict[str, list[float]] = {}
    stream = batches(split, -(-due[-1] // steps_per_epoch), seed)
    for step in range(due[-1] + 1):
        for monitor in monitors.values():
            monitor.step(step)
        if step in due:
            _note(progress, net, split)
        if step < due[-1]:
            train_step(net, optimizer, *next(stream))
    labels = np.repeat(np.arange(outputs), settings["points"])
    moments = {arm: _moments(due, progress["test loss"], last) for arm, last in arms.items()}
    return {
        "steps": due,
        "steps per epoch": steps_per_epoch,
        "images": split.origin,
        "arms": arms,
        "moments": moments,
        **progress,
        "probes": {
            points: {name: _summaries(monitors[points, name], labels) for of, name, _ in PROBED if of == points}
            for points in POINTS
        },
        "intervals": {points: _intervals(monitors[points, "sgd"], labels, moments) for points in POINTS},
    }


def _due(arms: Mapping[str, int], probes: int) -> list[int]:
    """Evenly spaced in the first arm, `probes` of them after the start, and as many in what the second adds."""
    first, last = arms["epochs"], arms["steps"]
    times = [*np.linspace(0, first, probes + 1), *np.linspace(first, last, probes + 1)]
    return sorted({round(time) for time in times})


def _moments(due: Sequence[int], loss: Sequence[float], last: int) -> dict[str, int]:
    """Places among the probes of an arm: the smallest test loss, and the end."""
    end = due.index(last)
    return {"best": int(np.argmin(loss[: end + 1])), "end": end}


def _points(split: Split, points: str, number: int, outputs: int, seed: int) -> tuple[Tensor, Tensor]:
    """`number` images of each class, class by class, drawn from the training set or the test set."""
    x, y = (split.x_train, split.y_train) if points == "training" else (split.x_test, split.y_test)
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.nonzero(y == label).flatten() for label in range(outputs)]
    rows = [of_one[torch.randperm(len(of_one), generator=generator)[:number].to(y.device)] for of_one in rows]
    return x[torch.cat(rows)], y[torch.cat(rows)]


def _note(progress: dict[str, list[float]], net: nn.Module, split: Split) -> None:
    some = torch.linspace(0, len(split.x_train) - 1, min(EVALUATED, len(split.x_train))).long()
    parts = {"train": (split.x_train[some], split.y_train[some]), "test": (split.x_test, split.y_test)}
    for name, (x, y) in parts.items():
        with torch.no_grad():
            outputs = torch.cat([net(part) for part in x.split(512)])
        progress.setdefault(f"{name} loss", []).append(round(float(F.cross_entropy(outputs, y)), 5))
        progress.setdefault(f"{name} accuracy", []).append(round(float((outputs.argmax(1) == y).double().mean()), 5))


def _summaries(monitor: le.Monitor, labels: np.ndarray) -> dict[str, Any]:
    """Measure → reduction → [t, classes, classes], or [t] where all pairs are pooled; and the share of pairs without a
    value."""
    found: dict[str, Any] = {}
    for name in monitor.history.measures:
        times = [smoothed(probe.similarity[name], labels) for probe in monitor.history]
        found[name] = {reduction: [time[reduction] for time in times] for reduction in times[0]}
    first = monitor.history.measures[0]
    unresolved = [float(np.isnan(probe.similarity[first]).mean()) for probe in monitor.history]
    return {"similarity": found, "unresolved": unresolved, "engine": monitor.history[0].engine}


def _intervals(monitor: le.Monitor, labels: np.ndarray, moments: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Definition 2 at each moment, by its place among the probes: [value, low, high] of the pooled ratio and of every
    pair of classes, by a bootstrap over probe points."""
    found = {}
    for place in sorted({place for arm in moments.values() for place in arm.values()}):
        S = monitor.history[place].similarity["kl"]
        whole = locality(S, labels, resamples=RESAMPLES, permutations=0)
        rows = pair_rows((S, labels, labels, None, True), "median", "exclude", RESAMPLES)
        found[str(place)] = {
            "ratio": [rounded(value) for value in (whole.ratio, whole.low, whole.high)],
            "pairs": [[rounded(value) for value in row[2:5]] for row in rows],
        }
    return found
