"""Products of differences: what the rules multiply with.

A difference is never subtracted again, so that an error of 1e-5 in a product is an error of 1e-5 of the answer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shared(d: Tensor, W: Tensor) -> Tensor:
    """d Wᵀ: differences [c, …, d] through one matrix [o, d] that all sources share."""
    return F.linear(d, W)


def each(x: Tensor, y: Tensor, add: Tensor | None = None) -> Tensor:
    """x y for each source, [c, p, d] by [c, d, o]; into `add` where it is given."""
    return torch.bmm(x, y) if add is None else add.baddbmm_(x, y)
