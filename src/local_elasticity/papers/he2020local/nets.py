"""The nets of Tables 1–8, by name, and how each is warmed up."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from local_elasticity.models.small import FullyConnectedResNet, cnn
from local_elasticity.papers.experiment import Reading, Settings
from local_elasticity.papers.he2020local.probe import largest_stable_rate
from local_elasticity.papers.he2020local.stack import Activation, Loss
from local_elasticity.papers.he2020local.task import Samples, Task
from local_elasticity.papers.he2020local.warm_up import (
    Learned,
    TrainingTask,
    WarmUpSchedule,
    learn_one,
    learn_two_layers,
)


@dataclass(frozen=True)
class Kind:
    """An architecture, a loss ("l2" or "bce"), whether it is warmed up, whether the data are normalised, and whether it
    learns at the largest stable rate in place of the paper's."""

    network: str
    loss: str
    trained: bool = True
    normalized: bool = True
    stable: bool = False


KINDS = {
    "relu l2": Kind("relu", "l2"),
    "relu bce": Kind("relu", "bce"),
    "linear l2": Kind("linear", "l2"),
    "linear bce": Kind("linear", "bce"),
    "cnn l2": Kind("cnn", "l2"),
    "resnet l2": Kind("resnet", "l2"),
    "relu l2 stable": Kind("relu", "l2", stable=True),
    "relu l2 random": Kind("relu", "l2", trained=False),
    "relu l2 unnormalized": Kind("relu", "l2", normalized=False),
    "relu bce unnormalized": Kind("relu", "bce", normalized=False),
}


def schedule(task: Task, kind: Kind, settings: Settings, reading: Reading) -> WarmUpSchedule:
    """A quarter of the epochs for BCE on MNIST; batches of 500 on CIFAR-10, for CNN and ResNet and for 3 vs 5, else of
    50. As released, BCE is nn.BCELoss after a sigmoid.
    """
    large = task.dataset == "cifar10" or kind.network in ("cnn", "resnet") or task.primary == (3, 5)
    shorter = 4 if kind.loss == "bce" and task.dataset == "mnist" else 1
    loss: Loss = "l2" if kind.loss == "l2" else "bce of probabilities" if reading == "as_released" else "bce"
    return WarmUpSchedule(
        loss=loss,
        epochs=settings["epochs"] // shorter if kind.trained else 0,
        batch_size=500 if large else 50,
    )


def rate(kind: Kind) -> float:
    """3e-3, but 3e-5 for linear nets with the squared loss."""
    return 3e-5 if (kind.network, kind.loss) == ("linear", "l2") else 3e-3


def labels(samples: Samples, kind: Kind, reading: Reading) -> torch.Tensor:
    """1 for primary examples; for auxiliary ones −1 as in Algorithm 1, or 0 as released and for BCE."""
    return samples.labels(-1.0 if kind.loss == "l2" and reading == "as_defined" else 0.0)


def learn(
    kind: Kind,
    together: Sequence[Samples],
    names: Sequence[str],
    plan: WarmUpSchedule,
    *,
    settings: Settings,
    reading: Reading,
    device: str,
) -> list[Learned]:
    """Nets of one kind, warmed up on one schedule; each one's draws are seeded by its name."""
    tasks = [
        TrainingTask(samples.x, labels(samples, kind, reading), rate(kind), zlib.crc32(name.encode()))
        for samples, name in zip(together, names, strict=True)
    ]
    if kind.network in ("relu", "linear"):
        activation: Activation = "relu" if kind.network == "relu" else "linear"
        if kind.stable:
            tasks = _at_stable_rates(tasks, activation, settings["width"], device)
        return learn_two_layers(tasks, plan, width=settings["width"], activation=activation, device=device)
    if kind.network == "cnn":
        return [learn_one(task, plan, cnn, device) for task in tasks]
    inputs, width = together[0].x[0].numel(), settings["resnet width"]
    return [learn_one(task, plan, lambda: FullyConnectedResNet(inputs, width=width), device) for task in tasks]


def _at_stable_rates(
    tasks: Sequence[TrainingTask], activation: Activation, width: int, device: str
) -> list[TrainingTask]:
    untrained = WarmUpSchedule("l2", epochs=0, batch_size=len(tasks[0].x))
    starts = learn_two_layers(tasks, untrained, width=width, activation=activation, device=device)
    return [
        replace(task, rate=largest_stable_rate(start.net, start.x)) for task, start in zip(tasks, starts, strict=True)
    ]
