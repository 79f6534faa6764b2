"""Rules of functions that move, gather or average activations, and of pooling by maximum."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import LINEAR, Pair, applied_to_deltas, base_of, delta_of, rule
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.tape import two

LINEAR.update(
    {
        torch.flatten,
        torch.reshape,
        torch.permute,
        torch.transpose,
        torch.squeeze,
        torch.unsqueeze,
        torch.mean,
        torch.sum,
        torch.cat,
        torch.stack,
        torch.chunk,
        torch.split,
        torch.narrow,
        torch.movedim,
        torch.clone,
        torch.detach,
        torch.unflatten,
        Tensor.flatten,
        Tensor.unflatten,
        Tensor.reshape,
        Tensor.permute,
        Tensor.transpose,
        Tensor.squeeze,
        Tensor.unsqueeze,
        Tensor.mean,
        Tensor.sum,
        Tensor.chunk,
        Tensor.split,
        Tensor.narrow,
        Tensor.movedim,
        Tensor.contiguous,
        Tensor.clone,
        Tensor.detach,
        Tensor.expand,
        Tensor.__getitem__,
        F.avg_pool2d,
        F.adaptive_avg_pool2d,
        F.avg_pool1d,
        F.adaptive_avg_pool1d,
        F.interpolate,
    }
)


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def dropout(x: Any, p: float = 0.5, training: bool = True) -> Pair:
    if training and p > 0:
        raise UnsupportedModelError("dropout in training mode")
    return base_of(x), delta_of(x)


@rule(F.pad)
def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Pair:
    """Differences are padded with zeros, whatever the constant."""
    same = {"pad": pad, "mode": mode}
    return F.pad(base_of(x), **same, value=value), applied_to_deltas(F.pad, (x,), same)


@rule(F.max_pool2d, torch.max_pool2d)
def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pair:
    """max(h + δ) − max(h) = max((h − max(h)) + δ) over each window; h − max(h) is 0 where the maximum was."""
    if return_indices or ceil_mode:
        raise UnsupportedModelError("max_pool2d with indices or ceil_mode")
    h, d = base_of(x), delta_of(x)
    assert d is not None
    base = F.max_pool2d(h, kernel_size, stride, padding, dilation)
    kernel, step, border, spacing = (two(v) for v in (kernel_size, stride or kernel_size, padding, dilation))
    if any(border):
        edges = (border[1], border[1], border[0], border[0])
        h, d = F.pad(h, edges, value=-torch.inf), F.pad(d.flatten(0, 1), edges).unflatten(0, d.shape[:2])
    rows, columns = base.shape[-2:]
    best: Tensor | None = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * spacing[0], j * spacing[1]
            window = (
                ...,
                slice(top, top + step[0] * (rows - 1) + 1, step[0]),
                slice(left, left + step[1] * (columns - 1) + 1, step[1]),
            )
            after = d[window] + (h[window] - base)
            best = after if best is None else torch.maximum(best, after, out=best)
    assert best is not None
    return base, best
