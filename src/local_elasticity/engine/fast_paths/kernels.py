"""Where the GPU kernels for differences can be had, and tensor cores."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

ALIGNED = 8
"""Rows and columns of right-hand sides are multiples of this, which the fast kernels of tensor cores need."""


def has_tensor_cores(device: torch.device) -> bool:
    """Whether a device multiplies numbers in bfloat16 on tensor cores."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def masked_below(dtype: torch.dtype) -> float:
    """The score below which a softmax takes no notice of changes, −1/ε: masks of −∞, of the least number there is or of
    −1e9 in float32 absorb what is added to them."""
    return -1 / torch.finfo(dtype).eps


@cache
def _triton() -> Any:
    """The kernels, if Triton is installed, as it is with torch for CUDA."""
    try:
        from local_elasticity.engine.fast_paths import differences_triton
    except ImportError:
        return None
    return differences_triton


def kernels_for(d: Tensor, width: int = 1) -> Any:
    """The kernels for differences in float32 on a GPU, in rows of such a width; None for any other."""
    if not d.is_cuda or d.dtype != torch.float32 or not d.numel():
        return None
    kernels = _triton()
    return None if kernels is None or width > kernels.WIDEST else kernels
