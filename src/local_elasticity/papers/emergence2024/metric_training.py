"""Metric learning on some classes, watched on others: images, networks, and the loop that measures along the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import local_elasticity.emergence as em
from local_elasticity.data.images import load
from local_elasticity.emergence.designs import generator_for
from local_elasticity.models.cifar_resnet import resnet20
from local_elasticity.papers.experiment import Settings

EMBEDDING = 64
PIXEL_NOISE = 1.0
"""Standard deviation of the noise on pixels in [0, 1], where there is noise."""

Measure = Callable[[Tensor, Tensor], float]
Loss = Callable[[Tensor, Tensor], Tensor]

MEASURES: dict[str, Measure] = {
    "alignment": em.OF_FEATURES["alignment"],
    "cosine": em.OF_FEATURES["cosine_alignment"],
    "centred cosine": em.OF_FEATURES["centred_alignment"],
    "recall": em.OF_FEATURES["recall_at_1"],
}


@dataclass(frozen=True)
class MetricImages:
    """Images and labels of the classes trained on, and of sets of classes that are not, by name."""

    seen: tuple[Tensor, Tensor]
    unseen: dict[str, tuple[Tensor, Tensor]]

    def to(self, device: str) -> MetricImages:
        unseen = {name: (x.to(device), y.to(device)) for name, (x, y) in self.unseen.items()}
        return MetricImages((self.seen[0].to(device), self.seen[1].to(device)), unseen)


def digits(settings: Settings, noise: float, seed: int) -> MetricImages:
    """MNIST: five digits drawn by the seed are trained on, the other five are not."""
    seen, others = _split(range(10), seed)
    images = load("mnist")
    x, y = images.take(seen, settings["per_class"], seed=seed, low=0.0)
    unseen = images.take(others, settings["unseen"], split="test", seed=seed, low=0.0)
    generator = generator_for("pixels", seed)
    x, other = (part + noise * torch.randn(part.shape, generator=generator) for part in (x, unseen[0]))
    return MetricImages((x, _from_zero(y)), {"unseen digits": (other, unseen[1])})


def photographs(settings: Settings, seed: int) -> MetricImages:
    """CIFAR-10: five classes drawn by the seed are trained on; the other five, and ten of CIFAR-100, are not."""
    seen, others = _split(range(10), seed)
    images, hundred = load("cifar10"), load("cifar100")
    x, y = images.take(seen, settings["per_class"], seed=seed)
    names = hundred.y_test.unique().tolist()[:10]
    return MetricImages(
        (x, _from_zero(y)),
        {
            "unseen classes": images.take(others, settings["unseen"], seed=seed),
            "CIFAR-100 classes": hundred.take(names, 100, split="test", seed=seed),
        },
    )


def small_cnn() -> nn.Sequential:
    """Two convolutions and a linear embedding, for 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, EMBEDDING),
    )


def residual_net() -> nn.Module:
    """ResNet-20 with a linear embedding."""
    net = resnet20()
    net.linear = nn.Linear(64, EMBEDDING)
    return net


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """PyTorch's own initialisation, without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def loss_named(name: str, classes: int, seed: int, device: str) -> tuple[Loss, list[nn.Parameter]]:
    """The loss and what it learns itself."""
    if name == "triplet":
        return em.triplet_loss, []
    proxies = em.ProxyLoss(classes, EMBEDDING, generator=generator_for("proxies", seed)).to(device)
    return proxies, list(proxies.parameters())


def train_and_watch(
    net: nn.Module, loss: Loss, more: list[nn.Parameter], images: MetricImages, *, steps: int, batch: int, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Adam on the seen classes; the measures on every unseen set at steps spaced evenly in their logarithm."""
    optimizer = torch.optim.Adam([*net.parameters(), *more], lr=1e-3)
    stops = set(np.unique(np.geomspace(1, steps, 16).round().astype(int)).tolist())
    extract = em.feature_extractor(net)
    starts = {name: extract(x) for name, (x, _) in images.unseen.items()}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in images.unseen}
    _note(found, extract, starts, images, 0)
    for step, (x, y) in enumerate(_batches(images.seen, steps, batch, seed), 1):
        net.train()
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), y).backward()
        optimizer.step()
        if step in stops:
            _note(found, extract, starts, images, step)
    return found


def _note(
    found: dict[str, dict[str, list[float]]],
    extract: Callable[[Tensor], Tensor],
    starts: dict[str, Tensor],
    images: MetricImages,
    step: int,
) -> None:
    for name, (x, labels) in images.unseen.items():
        features = extract(x)
        values = {measure: of(features, labels) for measure, of in MEASURES.items()}
        values["elasticity"] = em.elasticity(starts[name], features)
        for key, value in {"step": float(step), **values}.items():
            found[name].setdefault(key, []).append(round(value, 6))


def _batches(seen: tuple[Tensor, Tensor], steps: int, batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches, epoch after epoch."""
    generator = generator_for("batches", seed)
    x, y = seen
    left: list[Tensor] = []
    for _ in range(steps):
        if not left:
            order = torch.randperm(len(x), generator=generator)
            left = list(order[: len(x) // batch * batch].split(batch))
        rows = left.pop().to(x.device)
        yield x[rows], y[rows]


def _split(names: range, seed: int) -> tuple[list[int], list[int]]:
    order = torch.randperm(len(names), generator=generator_for("split", seed)).tolist()
    half = len(order) // 2
    return sorted(order[:half]), sorted(order[half:])


def _from_zero(labels: Tensor) -> Tensor:
    return labels.unique(return_inverse=True)[1]
