"""A.2 with ResNet-20 and ResNet-56 on CIFAR-10: one step on an image, and how far the predictions of others move.

The paper updates an ImageNet ResNet-152 on 50 tabby cats and watches 25 tiger cats and 25 warplanes: the cats'
predictions move more (Wilcoxon's rank-sum test over the updates, p = 0.0007). Here 50 images of every class update
while 25 of every class are watched, drawn from 100 test images of the class. Draws at different seeds overlap, so
verdicts are about these two networks and these 1000 images. Batch norm is frozen. The paper gives no step size: this
is the limit of small ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from local_elasticity.data.images import FOLDER, load
from local_elasticity.models.cifar_resnet import CifarResNet, load_public_weights, resnet20, resnet56
from local_elasticity.papers.experiment import Cell, Experiment, Findings, Measured, Reading, Settings, Unit
from local_elasticity.papers.he2020local.moves import (
    SHARE,
    SIGNIFICANT,
    Moves,
    cells,
    means_reversed,
    similar_moves_more,
)
from local_elasticity.papers.he2020local.task import CIFAR10
from local_elasticity.papers.smallest_effects import ANY_RATIO, HALF
from local_elasticity.statistics.claims import Claim

NETS: dict[str, tuple[Callable[[], CifarResNet], str]] = {
    "resnet20": (resnet20, "resnet20-12fca82f.th"),
    "resnet56": (resnet56, "resnet56-4bfd9763.th"),
}
VEHICLES = (0, 1, 8, 9)
EXAMPLE = (3, 5, 0)
"""Cats update; dogs and planes are watched: the paper's tabby cats, tiger cats and warplanes."""

STEP_SIZE = 1e-6
KEPT = ("rank-sum p", "signed-rank p", "share")
"""Of the comparisons other than the example."""

EXAMPLE_COLUMNS = [f"{net}: cat updates, dog against plane" for net in NETS]
ALL_COLUMNS = [f"{net}: all classes" for net in NETS]


class Pretrained(Experiment):
    name = "he2020local/pretrained"
    title = "One step of ResNet-20 and ResNet-56 on a CIFAR-10 image: KL at similar and at other classes"
    claims = (
        *(
            Claim(
                f"similar_{net}",
                f"In {net}, on 1000 test images of CIFAR-10: when it is updated on a cat, dogs change more than planes",
                "A.2",
                "share of updates after which the average KL of the dogs is larger than that of the planes, paired",
                similar_moves_more([column]),
                HALF,
                scale="arcsine",
                ours=True,
            )
            for net, column in zip(NETS, EXAMPLE_COLUMNS, strict=True)
        ),
        Claim(
            "everywhere",
            "The same whatever class updates: of an animal and a vehicle, the one of its own kind moves more",
            "A.2",
            "the same share, averaged over all triples of classes",
            similar_moves_more(ALL_COLUMNS),
            HALF,
            scale="arcsine",
            ours=True,
        ),
        Claim(
            "means",
            "The mean relative similarity is smaller at the similar class (the paper: 4.4 against 6.6)",
            "A.2",
            "mean S_rel, other class over similar class",
            means_reversed(EXAMPLE_COLUMNS),
            ANY_RATIO,
            scale="log",
            ours=True,
        ),
    )
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"nets": ["resnet20"], "classes": list(EXAMPLE), "sources": 2, "targets": 1},
        "small": {"nets": list(NETS), "classes": list(range(10)), "sources": 10, "targets": 5},
        "paper": {"nets": list(NETS), "classes": list(range(10)), "sources": 50, "targets": 25},
    }

    def parts(self, settings: Settings) -> list[str]:
        return list(settings["nets"])

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        n, m, classes = settings["sources"], settings["targets"], settings["classes"]
        x, y = load("cifar10").take(classes, n + m, split="test", seed=unit.seed, low=0.0)
        x = normalized(x).double().to(device)
        place = torch.arange(len(x)) % (n + m)
        build, file = NETS[unit.part]
        net = load_public_weights(build(), _weights(file)).double().to(device)
        sources = x[place < n], y[place < n].to(device)
        moves = Moves.of(net, *sources, x[place >= n], step_size=STEP_SIZE, engine="linearized")
        of_source, of_target = y[place < n].numpy(), y[place >= n].numpy()
        compared = {
            triple: moves.compared(of_source == triple[0], of_target == triple[1], of_target == triple[2])
            for triple in triples(classes)
        }
        return {
            "example": compared[EXAMPLE],
            "triples": {
                "-".join(CIFAR10[c] for c in triple): {key: round(found[key], 5) for key in KEPT}
                for triple, found in compared.items()
            },
            "unresolved": float(np.isnan(moves.relative).mean()),
        }

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        by_net: dict[str, list[Measured]] = {}
        for unit, found in measured.items():
            by_net.setdefault(unit.part, []).append(found)
        made = [
            cell
            for net, found in by_net.items()
            for cell in cells(f"{net}: cat updates, dog against plane", [one["example"] for one in found])
        ]
        made += [
            Cell("share of triples with rank-sum p < 0.05", f"{net}: all classes", None, tuple(map(_share, found)))
            for net, found in by_net.items()
        ]
        made += [
            Cell(SHARE, f"{net}: all classes", None, tuple(_mean_share(one) for one in found))
            for net, found in by_net.items()
        ]
        return Findings(made)


def triples(classes: Sequence[int]) -> list[tuple[int, int, int]]:
    """(updating, of the same kind, of the other kind): animals or vehicles.

    >>> triples([0, 3, 5])
    [(3, 5, 0), (5, 3, 0)]
    """
    vehicle = [c in VEHICLES for c in range(len(CIFAR10))]
    return [
        (a, b, c)
        for a, b, c in permutations(sorted(classes), 3)
        if vehicle[a] == vehicle[b] and vehicle[a] != vehicle[c]
    ]


def normalized(x: Tensor) -> Tensor:
    """Images in [0, 1] with ImageNet's channel means and deviations, as the public weights expect them."""
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    return torch.as_tensor((x - mean) / deviation)


def _share(found: Measured) -> float:
    return float(np.mean([triple["rank-sum p"] < SIGNIFICANT for triple in found["triples"].values()]))


def _mean_share(found: Measured) -> float:
    return float(np.mean([triple["share"] for triple in found["triples"].values()]))


def _weights(file: str) -> Path:
    path = Path(os.environ.get(FOLDER, ".")) / file
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: put the public weights into a folder and name it in {FOLDER}")
    return path
