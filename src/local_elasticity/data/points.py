"""Labelled points from a dataset by name, or from a file of your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    x, y = as_points(path, dict(zip("xy", read_arrays(path, ("x", "y"), "--data"), strict=True)), "--data")
    if y.ndim != 1 or y.is_floating_point():
        return x, y
    rows = torch.cat([torch.nonzero(y == label).flatten()[:per_class] for label in y.unique()])
    return x[rows], y[rows]


def as_points(path: Path, held: Mapping[str, np.ndarray], argument: str) -> list[Tensor]:
    """x, and y where there is one, as tensors: whole numbers stay, pixels and other numbers become float32.

    Raises:
        ValueError: they are no numbers, not one y for each x, or none at all; the message names the argument.
    """
    given = list(held.values())
    if any(one.dtype.kind not in "biuf" or not one.ndim for one in given) or len({len(one) for one in given}) != 1:
        kinds = " and ".join(f"{name} of {one.dtype} {one.shape}" for name, one in held.items())
        raise ValueError(f"{argument}: {path} must hold numbers, one y for each x; it holds {kinds}")
    if not len(given[0]):
        raise ValueError(f"{argument}: {path} holds no examples; give at least one")
    x, *labels = (torch.from_numpy(np.ascontiguousarray(one)) for one in given)
    x = x.float() if x.is_floating_point() or x.dtype == torch.uint8 else x
    return [x, *(y.float() if y.is_floating_point() else y.long() for y in labels)]


def read_arrays(path: Path, names: Sequence[str], argument: str) -> list[np.ndarray]:
    """Arrays of an .npz file by name; the array of an .npy file is called x. Nothing is unpickled.

    Raises:
        OSError: the file is missing or must not be read; the message names the argument.
        ValueError: it is no file of arrays, is cut off, or lacks one.
    """
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            held = {"x": found} if isinstance(found, np.ndarray) else found
            arrays, there = [held[name] for name in names if name in held], ", ".join(held)
    except OSError as error:
        raise type(error)(f"{argument}: {path} cannot be read ({error.strerror or error})") from error
    except Exception as error:  # NumPy raises what zip files and headers raise
        raise ValueError(f"{argument}: {path} cannot be read as arrays; write it with np.save or np.savez") from error
    if len(arrays) < len(names):
        raise ValueError(f"{argument}: {path} holds {there or 'nothing'}, but no array {' or '.join(names)}")
    return [_of_this_machine(one) for one in arrays]


def _of_this_machine(values: np.ndarray) -> np.ndarray:
    """In the byte order of this machine, and in a type that torch has too."""
    wide = values.dtype.kind == "f" and values.dtype.itemsize > np.dtype(float).itemsize
    return values.astype(float if wide else values.dtype.newbyteorder("="), copy=False)
