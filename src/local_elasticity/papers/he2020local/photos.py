"""A.2 with EfficientNet-Lite0, trained on ImageNet, on photographs: dogs update, other dogs and vehicles are watched.

One photograph of each of 24 breeds and 25 kinds of vehicles. Which breeds update and which are watched is the seed's
draw.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.data.images import FOLDER
from local_elasticity.models.pretrained import pretrained
from local_elasticity.papers.experiment import Experiment, Findings, Measured, Reading, Settings, Unit
from local_elasticity.papers.he2020local.moves import Moves, cells, means_reversed, similar_moves_more
from local_elasticity.papers.smallest_effects import ANY_RATIO, HALF
from local_elasticity.statistics.claims import Claim

BREEDS = {
    "chihuahua": 151,
    "blenheim_spaniel": 156,
    "basset": 161,
    "walker_hound": 166,
    "italian_greyhound": 171,
    "saluki": 176,
    "bedlington_terrier": 181,
    "norwich_terrier": 186,
    "airedale": 191,
    "miniature_schnauzer": 196,
    "silky_terrier": 201,
    "curly-coated_retriever": 206,
    "vizsla": 211,
    "clumber": 216,
    "irish_water_spaniel": 221,
    "briard": 226,
    "collie": 231,
    "doberman": 236,
    "entlebucher": 241,
    "great_dane": 246,
    "dalmatian": 251,
    "newfoundland": 256,
    "keeshond": 261,
    "miniature_poodle": 266,
}
"""Breed → its class in ImageNet."""

STEP_SIZE = 1e-3

COLUMN = "efficientnet_lite0: dog updates, dogs against vehicles"


class Photos(Experiment):
    name = "he2020local/photos"
    title = "One step of EfficientNet-Lite0 on a photograph of a dog: KL at other dogs and at vehicles"
    claims = (
        Claim(
            "photos",
            "A step on a dog moves the predictions at other dogs more than those at vehicles",
            "A.2",
            "share of updates after which the average KL of the dogs is larger than that of the vehicles, paired",
            similar_moves_more([COLUMN]),
            HALF,
        ),
        Claim(
            "means",
            "The mean relative similarity is smaller at the similar class: 4.4 against 6.6",
            "A.2",
            "mean S_rel, other class over similar class",
            means_reversed([COLUMN]),
            ANY_RATIO,
            scale="log",
        ),
    )
    scales = {  # noqa: RUF012 (read only)
        "smoke": {"sources": 2, "targets": 1, "pixels": 64},
        "small": {"sources": 6, "targets": 6, "pixels": 224},
        "paper": {"sources": 12, "targets": 12, "pixels": 224},
    }

    def parts(self, settings: Settings) -> list[str]:
        return ["efficientnet_lite0"]

    def measure(self, unit: Unit, settings: Settings, reading: Reading, device: str) -> Measured:
        n, m = settings["sources"], settings["targets"]
        generator = np.random.default_rng(unit.seed)
        breeds = list(generator.permutation(list(BREEDS)))[: n + m]
        vehicles = generator.permutation(sorted(file.name for file in _folder().glob("vehicle-*.png")))[:m]
        chosen = pretrained("efficientnet_lite0")
        images = chosen.prepare(_images([*(f"dog-{breed}.png" for breed in breeds), *vehicles]))
        x = F.interpolate(images, size=settings["pixels"], mode="bilinear").double().to(device)
        y = torch.tensor([BREEDS[breed] for breed in breeds[:n]], device=device)
        moves = Moves.of(chosen.net.double().to(device), x[:n], y, x[n:], step_size=STEP_SIZE, engine="looped")
        dogs = np.arange(2 * m) < m
        return {"example": moves.compared(np.ones(n, dtype=bool), dogs, ~dogs)}

    def find(self, measured: Mapping[Unit, Measured]) -> Findings:
        compared = [found["example"] for found in measured.values()]
        return Findings(cells(COLUMN, compared))


def _folder() -> Path:
    folder = Path(os.environ.get(FOLDER, ".")) / "photos"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: put photos/ into a folder and name it in {FOLDER}")
    return folder


def _images(names: Sequence[str]) -> Tensor:
    """[n, 3, H, W] in [−1, 1]."""
    from matplotlib.image import imread

    pixels = np.stack([imread(_folder() / name)[:, :, :3] for name in names])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2) * 2 - 1
