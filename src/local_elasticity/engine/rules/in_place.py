"""Functions that write into their first argument, and those that give the same result as a tensor of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.composites import COMPOSITES
from local_elasticity.engine.difference import IN_PLACE, LINEAR, RULES
from local_elasticity.engine.rules import elementwise, layers, products, shapes  # noqa: F401 (their functions)

_RESHAPE = frozenset(("squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"))
"""They give a tensor another shape, and write no values."""


def _plain(home: Any, name: str) -> Any:
    """The function that gives the same result, if it is supported."""
    spelled = f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")
    found = getattr(home, spelled, None)
    supported = (found in table for table in (RULES, LINEAR, COMPOSITES)) if callable(found) else ()
    return found if any(supported) else None


def _writes(name: str) -> bool:
    if name.startswith("__"):
        return name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
    return name.endswith("_") and not name.startswith("_") and name not in _RESHAPE


def copied(x: Any, other: Any, non_blocking: bool = False) -> Any:
    """What `x` is after x.copy_(other)."""
    return other.to(x.dtype).expand(x.shape)


COMPOSITES[copied] = copied
IN_PLACE.update(
    {
        getattr(home, name): plain
        for home in (torch, Tensor, F)
        for name in filter(_writes, dir(home))
        if (plain := _plain(home, name)) is not None
    }
)
IN_PLACE.update({Tensor.copy_: copied, Tensor.zero_: torch.zeros_like, Tensor.fill_: torch.full_like})
