"""Weights that stay in half precision in memory and compute as if they had been cast.

A language model's frozen weights are the largest thing in memory. They never move, so that casting all of them to the
precision of the differences would triple what they take and gain no digit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.fast_paths.kernels import ALIGNED, has_tensor_cores

HALVES = (torch.bfloat16, torch.float16)

LAYER_AXES = 2
"""Axes from which on a weight is kept as it is stored. Smaller ones take no memory and are cast."""


class HalfStored(Tensor):
    """A constant whose numbers are `stored` in half precision. It has the shape and the dtype of the cast tensor; every
    function computes with the cast numbers, of one weight at a time. Views of it stay in half precision.

    >>> weight = HalfStored(torch.ones(2, 3, dtype=torch.bfloat16), torch.float32)
    >>> weight.dtype, weight.stored.dtype, type(weight.T).__name__
    (torch.float32, torch.bfloat16, 'HalfStored')
    >>> torch.ones(1, 3) @ weight.T
    tensor([[3., 3.]])
    """

    stored: Tensor

    @staticmethod
    def __new__(cls, stored: Tensor, dtype: torch.dtype) -> HalfStored:
        made: HalfStored = Tensor._make_wrapper_subclass(
            cls, stored.shape, strides=stored.stride(), dtype=dtype, device=stored.device
        )
        made.stored = stored
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def data_ptr(self) -> int:
        """Where the stored numbers are."""
        return self.stored.data_ptr()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"HalfStored({list(self.shape)}, {self.stored.dtype} as {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise RuntimeError(f"{func} writes a weight that is stored in half precision; it has to be cast first")
        if func in _VIEWS:
            first = args[0]
            return HalfStored(func(first.stored, *args[1:], **kwargs), first.dtype)
        if func is _aten.embedding.default and isinstance(args[0], HalfStored):
            return func(args[0].stored, *args[1:], **kwargs).to(args[0].dtype)
        if func in _PRODUCTS and not kwargs and _takes_tensor_cores(*args[-2:]):
            found = _product(args[-2], args[-1].stored)
            return found if func is _aten.mm.default else found.add_(cast(args[0]))
        return func(*tree_map(cast, args), **tree_map(cast, kwargs))


def keeps_half(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    """Whether a constant is worth keeping as it is stored, when `dtype` is what it computes in."""
    return dtype is not None and tensor.dtype in HALVES and dtype not in HALVES and tensor.ndim >= LAYER_AXES


def cast(value: Any) -> Any:
    """A stored weight as a plain tensor of the precision that it computes in; anything else as it is."""
    return value.stored.to(value.dtype) if isinstance(value, HalfStored) else value


def _takes_tensor_cores(rows: Tensor, weight: Tensor) -> bool:
    """Whether tensor cores multiply float32 rows with a weight that is stored in bfloat16."""
    if not (isinstance(weight, HalfStored) and weight.stored.dtype is torch.bfloat16):
        return False
    fits = rows.dtype == torch.float32 and all(size % ALIGNED == 0 for size in weight.shape)
    return fits and has_tensor_cores(rows.device)


def _product(rows: Tensor, stored: Tensor) -> Tensor:
    """Their product in float32. A number of 24 digits is the sum of three of 8 digits. The products of these with the
    numbers of the weight are exact, and are added in float32, the small ones first."""
    high = rows.bfloat16()
    rest = rows - high
    middle = rest.bfloat16()
    total = torch.mm((rest - middle).bfloat16(), stored, out_dtype=torch.float32)
    for part in (middle, high):
        total += torch.mm(part, stored, out_dtype=torch.float32)
    return total


_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default})
_VIEWS = frozenset(
    {
        *(_aten.detach.default, _aten.alias.default, _aten.t.default, _aten.transpose.int, _aten.permute.default),
        *(_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.unsqueeze.default),
        *(_aten.squeeze.dim, _aten.slice.Tensor, _aten.select.int),
    }
)
"""Functions that only look at the numbers in another order, so that they stay as they are stored."""
