"""The patches that a convolution sees, as a view: one copy lays them out in whatever order a product wants."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor


def patches(x: Tensor, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Windows of images [b, c, h, w] as a view [b, c, kh, kw, h′, w′].

    >>> import torch
    >>> patches(torch.zeros(2, 3, 8, 8), 3, padding=1, stride=2).shape
    torch.Size([2, 3, 3, 3, 4, 4])
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (two(v) for v in (kernel_size, stride, padding, dilation))
    if ph or pw:
        x = F.pad(x, (pw, pw, ph, ph))
    b, c, h, w = x.shape
    rows, columns = (h - dh * (kh - 1) - 1) // sh + 1, (w - dw * (kw - 1) - 1) // sw + 1
    at_b, at_c, at_h, at_w = x.stride()
    strides = (at_b, at_c, at_h * dh, at_w * dw, at_h * sh, at_w * sw)
    return x.as_strided((b, c, kh, kw, rows, columns), strides, x.storage_offset())


def two(value: Any) -> tuple[int, int]:
    """One number for both axes, or two."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))
