"""The one place that knows torchvision (extra `vision`), which does not import with a CPU-only build of torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch

logger = logging.getLogger("local_elasticity")

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN"}


def works() -> bool:
    """Whether torchvision is installed and imports with this build of torch."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError) as error:
        logger.info("torchvision does not import here (%s)", error)
        return False
    return True


def load(name: str) -> list[np.ndarray] | None:
    """x_train, y_train, x_test, y_test; downloaded into torch's cache where it is not there yet."""
    if not works():
        return None
    from torchvision import datasets

    root = Path(torch.hub.get_dir()).parent / "datasets"
    dataset = getattr(datasets, DATASETS[name])
    try:
        splits = [_split(dataset, name, root, train) for train in (True, False)]
    except (OSError, RuntimeError) as error:
        logger.info("torchvision could not provide %s (%s)", name, error)
        return None
    return [part for split in splits for part in split]


def _split(dataset: Any, name: str, root: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
    if name == "svhn":
        images = dataset(root, split="train" if train else "test", download=True)
        return images.data.transpose(0, 2, 3, 1), np.asarray(images.labels)
    images = dataset(root, train=train, download=True)
    return np.asarray(images.data), np.asarray(images.targets)
