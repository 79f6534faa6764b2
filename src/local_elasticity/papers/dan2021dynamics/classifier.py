"""The classifier of §2.1 in training: ResNet-18 without batch norm, probed as it goes. All panels from one run.

The released notebooks' settings: Adam at 1e-4 with weight decay 1e-4, batches of 256, 7 epochs, 7 probes an epoch, one
random crop and flip of every image at loading, channels normalised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from local_elasticity.engine.update import Update
from local_elasticity.models.resnet18 import ResNet18
from local_elasticity.papers.dan2021dynamics.readings import MEASURES, smoothed
from local_elasticity.papers.experiment import Settings
from local_elasticity.training.schedule import Listed

RATE = WEIGHT_DECAY = 1e-4
BATCH = 256
CROP = 4
"""Pixels that a crop may be shifted by, each way."""

EVALUATED = 1500
"""Images of the training set that its loss and accuracy are read from."""

STEPS: dict[str, Update] = {"sgd": le.SGD(RATE), "adam": le.Adam(RATE, weight_decay=WEIGHT_DECAY)}
"""The probing step: of the definition (SGD), and of the notebooks (a fresh Adam)."""

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
    return Split(baked.to(device), y_train.to(device), x_test.to(device), y_test.to(device), images.origin)


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
    x, y = _points(split, settings["points"], outputs)
    steps_per_epoch = len(split.x_train) // min(BATCH, len(split.x_train))
    due = _due(settings["epochs"], settings["probes"], steps_per_epoch)
    monitors = {
        name: le.Monitor(
            net,
            (x, y),
            loss="cross_entropy",
            measure=MEASURES,
            update=step,
            schedule=Listed(due),
            budget=None,
            engine=ENGINES[device.partition(":")[0]][name],
            memory=None,
        )
        for name, step in STEPS.items()
    }
    measured: dict[str, Any] = {"steps": due, "steps per epoch": steps_per_epoch, "images": split.origin}
    progress: dict[str, list[float]] = {}
    stream = batches(split, settings["epochs"], seed)
    for step in range(due[-1] + 1):
        for monitor in monitors.values():
            monitor.step(step)
        if step in due:
            _note(progress, net, split)
        if step < due[-1]:
            train_step(net, optimizer, *next(stream))
    labels = y.cpu().numpy()
    return {**measured, **progress, "probes": {name: _summaries(monitors[name], labels) for name in STEPS}}


def _due(epochs: int, probes: int, steps_per_epoch: int) -> list[int]:
    """Evenly spaced in every epoch, from before the first step to after the last."""
    schedule = le.training.PerEpoch(min(probes, steps_per_epoch), steps_per_epoch)
    last = epochs * steps_per_epoch
    return [step for step in range(last) if schedule.due(step)] + [last]


def _points(split: Split, points: int, outputs: int) -> tuple[Tensor, Tensor]:
    """The first `points` training images of each class."""
    rows = torch.cat([torch.nonzero(split.y_train == label).flatten()[:points] for label in range(outputs)])
    return split.x_train[rows], split.y_train[rows]


def _note(progress: dict[str, list[float]], net: nn.Module, split: Split) -> None:
    some = torch.linspace(0, len(split.x_train) - 1, min(EVALUATED, len(split.x_train))).long()
    parts = {"train": (split.x_train[some], split.y_train[some]), "test": (split.x_test, split.y_test)}
    for name, (x, y) in parts.items():
        with torch.no_grad():
            outputs = torch.cat([net(part) for part in x.split(512)])
        progress.setdefault(f"{name} loss", []).append(round(float(F.cross_entropy(outputs, y)), 5))
        progress.setdefault(f"{name} accuracy", []).append(round(float((outputs.argmax(1) == y).double().mean()), 5))


def _summaries(monitor: le.Monitor, labels: np.ndarray) -> dict[str, Any]:
    """Measure → reduction → [t, classes, classes]; and the share of pairs without a value."""
    found: dict[str, Any] = {}
    for name in monitor.history.measures:
        times = [smoothed(probe.similarity[name], labels) for probe in monitor.history]
        found[name] = {reduction: [time[reduction] for time in times] for reduction in times[0]}
    unresolved = [float(np.isnan(probe.similarity["kl"]).mean()) for probe in monitor.history]
    return {"similarity": found, "unresolved": unresolved, "engine": monitor.history[0].engine}
