"""Image datasets, found where they are: a folder of yours, torchvision's cache, or inside an installed package."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from local_elasticity.checks import check_choice
from local_elasticity.data import packaged, vision

logger = logging.getLogger("local_elasticity")

FOLDER = "LOCAL_ELASTICITY_DATA"
"""The environment variable that names your folder of `.npz` files."""

FILES: dict[str, tuple[str, ...]] = {
    "mnist": ("mnist.npz",),
    "cifar10": ("cifar10.npz", "cifar10-subset.npz"),
    "cifar10-plane-car-ship": ("cifar10-plane-car-ship.npz",),
    "cifar100": ("cifar100.npz", "cifar100-subset.npz"),
    "svhn": ("svhn.npz", "svhn-subset.npz"),
    "svhn-0-2-4": ("svhn-0-2-4.npz",),
    "digits": (),
}
"""Dataset → the files that may hold it, the most complete first."""


@dataclass(frozen=True)
class Images:
    """A dataset of labelled images: uint8, [N, C, H, W], in the order of the original.

    `origin` says where it came from, because a subset is not the dataset.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    origin: str

    def take(
        self,
        classes: Sequence[int],
        per_class: int,
        *,
        split: str = "train",
        seed: int | None = None,
        low: float = -1.0,
        high: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """`per_class` images of each class as floats in [low, high], class after class, with their labels.

        Without a seed the first ones in the dataset's order, with one a random draw.

        >>> import local_elasticity as le
        >>> x, y = le.data.load("digits").take([3, 8], per_class=5)
        >>> x.shape, y.tolist()
        (torch.Size([10, 1, 8, 8]), [3, 3, 3, 3, 3, 8, 8, 8, 8, 8])
        """
        check_choice("split", split, ("train", "test"))
        x, y = (self.x_train, self.y_train) if split == "train" else (self.x_test, self.y_test)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        chosen = []
        for label in classes:
            found = torch.nonzero(y == label).flatten()
            if len(found) < per_class:
                raise ValueError(
                    f"per_class: {self.name} ({self.origin}) has {len(found)} {split} images of class {label}, "
                    f"not {per_class}"
                )
            order = torch.arange(len(found)) if generator is None else torch.randperm(len(found), generator=generator)
            chosen.append(found[order[:per_class]])
        rows = torch.cat(chosen)
        return low + (high - low) * x[rows].float() / 255, y[rows]


def load(name: str) -> Images:
    """A dataset by name: from the folder of LOCAL_ELASTICITY_DATA, else through torchvision (extra `vision`, which
    downloads), else from an installed package. It says which it used (`.origin`, and the log).

    >>> import local_elasticity as le
    >>> le.data.load("digits").x_train.shape[1:]
    torch.Size([1, 8, 8])
    """
    _check_name(name)
    for find in (_from_folder, _from_torchvision, _from_package):
        images = find(name)
        if images is not None:
            logger.info("%s: %s", name, images.origin)
            return images
    raise FileNotFoundError(
        f"name: {name} is not on this machine; put {' or '.join(FILES[name]) or name} into a folder and name it in "
        f"{FOLDER}, or install the extra 'vision' (pip install 'local-elasticity[vision]'), which downloads it"
    )


def available() -> dict[str, str]:
    """Each dataset and where it would come from, without loading or downloading anything."""
    return {name: _place(name) for name in FILES}


def _place(name: str) -> str:
    path = _file(name)
    if path is not None:
        return str(path)
    if name in vision.DATASETS and vision.works():
        return "torchvision (may download)"
    return packaged.PLACES.get(name, "not found")


def _file(name: str) -> Path | None:
    folder = os.environ.get(FOLDER)
    paths = [Path(folder) / file for file in FILES[name]] if folder else []
    return next((path for path in paths if path.exists()), None)


def _from_folder(name: str) -> Images | None:
    path = _file(name)
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as arrays:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(arrays.files)
        if missing:
            raise ValueError(f"{FOLDER}: {path} lacks {', '.join(sorted(missing))}")
        parts = [arrays[part] for part in ("x_train", "y_train", "x_test", "y_test")]
    return _images(name, parts, str(path))


def _from_torchvision(name: str) -> Images | None:
    parts = vision.load(name) if name in vision.DATASETS else None
    return None if parts is None else _images(name, parts, "torchvision")


def _from_package(name: str) -> Images | None:
    parts = packaged.load(name)
    return None if parts is None else _images(name, parts, packaged.PLACES[name])


def _images(name: str, parts: Sequence[np.ndarray], origin: str) -> Images:
    x_train, y_train, x_test, y_test = parts
    return Images(name, _channels_first(x_train), _labels(y_train), _channels_first(x_test), _labels(y_test), origin)


def _channels_first(x: np.ndarray) -> Tensor:
    images = torch.from_numpy(np.ascontiguousarray(x))
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _labels(y: np.ndarray) -> Tensor:
    return torch.from_numpy(y.astype(np.int64))


def _check_name(name: str) -> None:
    check_choice("name", name, FILES)
