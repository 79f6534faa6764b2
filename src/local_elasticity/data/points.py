"""Labelled points from a dataset by name, or from a file of your own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from local_elasticity.data.images import load


def read_points(data: str, per_class: int) -> tuple[Tensor, Tensor]:
    """(x, y): the first test images of each class of a dataset, or x and y of an .npz file, as they are.

    >>> x, y = read_points("digits", per_class=2)
    >>> x.shape, y.tolist()[:4]
    (torch.Size([20, 1, 8, 8]), [0, 0, 1, 1])
    """
    path = Path(data)
    if path.suffix != ".npz":
        images = load(data)
        return images.take(images.y_test.unique().tolist(), per_class, split="test")
    with np.load(path, allow_pickle=False) as arrays:
        if not {"x", "y"} <= set(arrays.files):
            raise ValueError(f"--data: {path} must hold the arrays x and y; it holds {', '.join(arrays.files)}")
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    x = x.float() if x.is_floating_point() or x.dtype == torch.uint8 else x
    y = y.float() if y.is_floating_point() else y.long()
    if y.ndim != 1 or y.is_floating_point():
        return x, y
    rows = torch.cat([torch.nonzero(y == label).flatten()[:per_class] for label in y.unique()])
    return x[rows], y[rows]
