"""How differences line up: δ has one axis more than h, in front, whatever h is broadcast to."""

from __future__ import annotations

from torch import Tensor


def aligned(delta: Tensor, ndim: int) -> Tensor:
    """δ [c, …] with the axes of a result of so many, the missing ones after c.

    >>> import torch
    >>> aligned(torch.ones(5, 3), 3).shape
    torch.Size([5, 1, 1, 3])
    """
    missing = ndim - (delta.ndim - 1)
    return delta.reshape(len(delta), *[1] * missing, *delta.shape[1:]) if missing > 0 else delta


def added(delta: Tensor | None, moved: Tensor | None, base: Tensor, *, channels: bool = False) -> Tensor | None:
    """δ and the change of a bias, which has an entry for each of the last places, or for each channel."""
    if moved is None:
        return delta
    of_channels = (len(moved), 1, -1, *[1] * (base.ndim - 2))
    moved = moved.view(of_channels) if channels else aligned(moved, base.ndim)
    return moved.expand(len(moved), *base.shape) if delta is None else delta + moved
