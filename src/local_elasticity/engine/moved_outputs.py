"""Outputs moved by as much as they are rounded, and losses that take no outputs outside of [0, 1]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from local_elasticity.engine.guard import DispatchMode
from local_elasticity.engine.loss import NAMED, LossFunction, bce
from local_elasticity.engine.memory import may_be_passed_over
from local_elasticity.engine.rounding import alternating_signs


def last_places(outputs: Tensor) -> Tensor:
    """A unit in the last place of the largest finite output of each example."""
    size = torch.where(outputs.isfinite(), outputs.abs(), 0)
    largest = size.reshape(len(size), -1).amax(1).reshape(-1, *[1] * (size.ndim - 1))
    return torch.finfo(outputs.dtype).eps * largest


def rounded(outputs: Tensor, unit: Tensor, pattern: int = 0) -> Tensor:
    """Outputs moved by `unit`, up or down in one of several patterns. Infinite ones, which are masked, stay."""
    moved = outputs + (-1) ** pattern * unit * alternating_signs(outputs[0], pattern)
    return torch.where(moved.isfinite(), moved, outputs)


def takes_probabilities_only(loss: LossFunction, outputs: Tensor, labels: Tensor) -> bool:
    """Whether a loss raises at outputs below 0 or above 1. Torch's binary cross-entropy is found by its kernel and not
    tried, because such outputs make the process unable to use the GPU."""
    if loss in NAMED:
        return loss is bce
    if bool(((outputs < 0) | (outputs > 1)).any()):
        return False
    with _Kernels() as seen:
        loss(outputs[:1], labels[:1].clone())
    if torch.ops.aten.binary_cross_entropy in seen.kernels:
        return True
    try:
        for outside in (-0.5, 1.5):
            loss(torch.full_like(outputs[:1], outside), labels[:1].clone())
    except Exception as error:  # any error of a loss that checks its outputs
        if not may_be_passed_over(error):
            raise
        return True
    return False


class _Kernels(DispatchMode):
    """Collects the kernels of torch that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kernels.add(func.overloadpacket)
        return func(*args, **(kwargs or {}))
