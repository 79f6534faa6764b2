"""What is refused, in one place: each check names the argument and says what to do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def check_finite(name: str, values: Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name}: it holds NaN or infinity; leave such rows out")


def check_stream(name: str, stream: object, labels: Tensor | None, *, labels_name: str = "labels") -> None:
    """What is no tensor must be batches (features, labels), and then there are no other labels."""
    if isinstance(stream, np.ndarray) or not isinstance(stream, Iterable):
        raise TypeError(
            f"{name}: expected a tensor [n, p] or a stream of features, got {type(stream).__name__}; "
            "torch.as_tensor makes a tensor"
        )
    if labels is not None:
        raise ValueError(f"{labels_name}: a stream brings its own; pass None for these")


def checked_features(name: str, features: Tensor) -> Tensor:
    """[n, p] with n at least 1, in float64."""
    if not isinstance(features, Tensor):
        raise TypeError(f"{name}: expected a tensor [n, p], got {type(features).__name__}; torch.as_tensor makes one")
    if features.ndim != 2 or not features.numel():
        raise ValueError(f"{name}: expected shape [n, p], got {tuple(features.shape)}; flatten what follows the rows")
    check_finite(name, features)
    return features.detach().double()


def checked_labels(labels: Tensor, count: int) -> Tensor:
    labels = torch.as_tensor(labels)
    if labels.shape != (count,):
        raise ValueError(f"labels: expected one class for each of the {count} rows, got shape {tuple(labels.shape)}")
    if labels.is_floating_point() and bool((labels != labels.round()).any()):
        raise ValueError("labels: classes are whole numbers")
    return labels.long()
