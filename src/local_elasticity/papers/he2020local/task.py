"""What is clustered: two classes that a net is to tell apart without having been told, and the auxiliary ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from local_elasticity.data.images import Images, load
from local_elasticity.papers.experiment import Reading

CIFAR10 = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Task:
    """A column of a table: the primary pair and the auxiliary classes of a dataset."""

    dataset: str
    primary: tuple[int, int]
    auxiliary: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.dataset} {'-'.join(self._words(self.primary))} aux {','.join(self._words(self.auxiliary))}"

    @property
    def heading(self) -> str:
        return f"{' vs '.join(self._words(self.primary))} (aux {', '.join(self._words(self.auxiliary))})"

    def _words(self, classes: Sequence[int]) -> list[str]:
        return [CIFAR10[c] if self.dataset == "cifar10" else str(c) for c in classes]


@dataclass(frozen=True)
class Samples:
    """Primary examples first, then auxiliary ones: images x [n + m, C, H, W]; the classes of the primary ones [n]."""

    x: Tensor
    classes: Tensor

    @property
    def primary(self) -> Tensor:
        return self.x[: len(self.classes)]

    def labels(self, negative: float) -> Tensor:
        """1 for the primary examples, `negative` for the auxiliary ones."""
        return torch.where(torch.arange(len(self.x)) < len(self.classes), 1.0, negative)


MNIST_TASKS = tuple(
    Task("mnist", primary, auxiliary)
    for primary, auxiliary in (
        ((5, 8), (3, 9)),
        ((4, 9), (5, 7)),
        ((7, 9), (4, 5)),
        ((5, 9), (4, 8)),
        ((3, 5), (8, 9)),
        ((3, 8), (5,)),
    )
)
"""The columns of Tables 1, 3–5, 7, 8."""

CIFAR10_TASKS = tuple(
    Task("cifar10", primary, auxiliary)
    for primary, auxiliary in (
        ((1, 3), (2,)),
        ((1, 7), (3, 2)),
        ((3, 2), (1,)),
        ((5, 4), (6,)),
        ((1, 2), (3,)),
        ((4, 6), (5,)),
    )
)
"""The columns of Table 2."""

AUXILIARY_TASKS = tuple(Task("mnist", (5, 8), classes) for classes in ((3, 9), (6, 9), (2, 3), (2, 6), (3,), (9,)))
"""The columns of Table 6."""


def draw(
    task: Task, *, per_class: int, auxiliary: int, seed: int, reading: Reading, normalized: bool = True
) -> Samples:
    """`per_class` images of either primary class and `auxiliary` ones in all, in [−1, 1], or in [0, 1] not normalised.

    As defined, random samples, the auxiliary ones split evenly over their classes. As released, the first ones in the
    dataset's order, whatever the seed; the auxiliary ones as they come, so that the split is uneven; and of the colours
    only red in [−1, 1], green and blue in [0, 1]: Normalize((0.5,), (0.5,)) stopped after one channel in early versions
    of torchvision, and the baselines of Table 2 come out so and not otherwise.
    """
    images, low = _images(task.dataset), -1.0 if normalized else 0.0
    if reading == "as_released":
        x, classes = images.take(task.primary, per_class, low=low)
        x = torch.cat([x, _first(images, task.auxiliary, auxiliary, low)])
        x[:, 1:] = (x[:, 1:] - low) / (1 - low)
    else:
        x, classes = images.take(task.primary, per_class, seed=seed, low=low)
        others, _ = images.take(task.auxiliary, auxiliary // len(task.auxiliary), seed=seed, low=low)
        x = torch.cat([x, others])
    return Samples(x, classes)


@cache
def _images(dataset: str) -> Images:
    """Read once: a table draws from it for every unit."""
    return load(dataset)


def _first(images: Images, classes: Sequence[int], size: int, low: float) -> Tensor:
    rows = torch.isin(images.y_train, torch.tensor(classes)).nonzero().flatten()[:size]
    if len(rows) < size:
        raise ValueError(
            f"auxiliary: {images.name} ({images.origin}) has {len(rows)} training images of the classes {classes}, "
            f"not {size}"
        )
    return low + (1 - low) * images.x_train[rows].float() / 255
