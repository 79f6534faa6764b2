"""Products of differences: what the rules multiply with.

Differences are not subtracted from each other, so a relative error of 1e-5 in a product is one of 1e-5 in the result.
On a GPU, tensor cores reach this accuracy several times as fast as float32. A number is split into two in bfloat16,
high + low. Of the four products of two such numbers, the three larger ones are added in float32. This is one product of
matrices that are three times as wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.fast_paths.kernels import ALIGNED, kernels_for
from local_elasticity.engine.half_stored import HalfStored
from local_elasticity.engine.object_parts import storage_of
from local_elasticity.engine.uses import each_axis, patches

SPLIT_ROUNDING = 2e-5
"""The relative error of split products; that of float32 is 1e-7."""

NARROW = 64
"""Rows and columns below which tensor cores gain nothing."""

FEW_ROWS = 1024
"""Total rows of all sources below which splitting costs more than it saves."""


class Splits:
    """Shared weights as right-hand sides, by where they are in memory. Only those that stay there are kept: where a
    weight is computed in every pass, another one may take its place in memory. Without tensor cores, the products of
    parts are computed in plain float32."""

    def __init__(self, lasting: Iterable[Tensor], *, tensor_cores: bool = True) -> None:
        self.tensor_cores = tensor_cores
        self._places = {storage_of(_numbers(tensor)).data_ptr() for tensor in lasting}
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def of(self, term: Term) -> Tensor:
        """The right side [o, w] of a term as high and low parts."""
        W = term.right if term.made_of is None else term.made_of
        numbers = _numbers(W)
        if numbers.untyped_storage().data_ptr() not in self._places:
            return _split(term.right)
        key = numbers.data_ptr(), *W.stride(), *term.right.shape
        if key not in self._kept:
            self._kept[key] = _split(term.right)
        return self._kept[key]


def _numbers(W: Tensor) -> Tensor:
    return W.stored if isinstance(W, HalfStored) else W


def _split(W: Tensor) -> Tensor:
    W = F.pad(_numbers(W).to(W.dtype), (0, 0, 0, -len(W) % ALIGNED))
    parts = torch.empty(len(W), 3 * W.shape[1], dtype=torch.bfloat16, device=W.device)
    kernels_for(W).split_into(W.contiguous(), parts, 0, left=False)
    return parts


_splits: ContextVar[Splits | None] = ContextVar("splits", default=None)


@contextmanager
def by_parts(splits: Splits | None) -> Iterator[None]:
    """Multiply on tensor cores inside this context, where that is faster, and cache the parts of shared weights in
    `splits`. If it is None, multiply in the precision of the differences."""
    token = _splits.set(splits)
    try:
        yield
    finally:
        _splits.reset(token)


def splits_numbers() -> bool:
    """Whether products are computed from split numbers."""
    return _splits.get() is not None


@dataclass(frozen=True)
class Windows:
    """The patches of images [c, t, C, …] as rows [c, p, w], channels last, laid out only where they are multiplied."""

    images: Tensor
    kernel: tuple[int, ...]
    geometry: dict[str, Any]

    @property
    def shape(self) -> torch.Size:
        rows = self.images.shape[1] * math.prod(self.places)
        return torch.Size((len(self.images), rows, self.images.shape[2] * math.prod(self.kernel)))

    @property
    def places(self) -> tuple[int, ...]:
        """The number of filter positions along every axis."""
        sizes = zip(self.images.shape[3:], self.kernel, *self.options, strict=True)
        return tuple((size + 2 * border - gap * (k - 1) - 1) // step + 1 for size, k, step, border, gap in sizes)

    @property
    def options(self) -> list[tuple[int, ...]]:
        """Stride, padding and dilation on every axis."""
        return [each_axis(self.geometry[name], len(self.kernel)) for name in ("stride", "padding", "dilation")]

    @property
    def ndim(self) -> int:
        return 3

    def rows(self) -> Tensor:
        n = len(self.kernel)
        windows = patches(self.images.flatten(0, 1), self.kernel, **self.geometry)
        windows = windows.permute(0, *range(2 + n, 2 + 2 * n), *range(2, 2 + n), 1)
        return windows.reshape(self.shape)

    def split_into(self, out: Tensor, at: int) -> None:
        """Write high and low parts for the left side of a product into `out`."""
        kernels, flat = kernels_for(self.images), out.view(-1, out.shape[-1])
        if len(self.kernel) != 2:
            kernels.split_into(self.rows().flatten(0, 1), flat, at, left=True)
            return
        kernels.windows_into(self.images, flat, at, self.kernel, self.places, *self.options)


@dataclass(frozen=True)
class Term:
    """left rightᵀ for each source: left [c, p, w], or [p, w] where it is the same for all; right [c, o, w] or [o, w].
    `plus` [p, w] is added to the left side. `made_of` is the weight that a shared right side is a copy of."""

    left: Tensor | Windows
    right: Tensor
    plus: Tensor | None = None
    made_of: Tensor | None = None

    @property
    def whole(self) -> Tensor:
        left = self.left.rows() if isinstance(self.left, Windows) else self.left
        return left if self.plus is None else left + self.plus


def total_of(terms: list[Term], c: int, shift: Tensor | None = None) -> Tensor:
    """The sum of the terms, and of a `shift` [c, o] of each source: [c, p, o]."""
    splits = _splits.get()
    if splits is not None and not splits.tensor_cores:
        return _in_plain_products(terms, c, shift)
    if splits is not None and all(_wide(term, c) for term in terms):
        return _on_tensor_cores(terms, c, shift, splits)
    total: Tensor | None = None
    for term in sorted(terms, key=lambda term: term.right.ndim):  # the shared weights first, in one large product
        left, right = term.whole, term.right
        if right.ndim == 2:
            part = F.linear(left, right)
            total = part if total is None else total + part
            continue
        left = left.expand(c, *left.shape[-2:])
        if total is None or total.ndim == 2:
            part = torch.bmm(left, right.transpose(1, 2))
            total = part if total is None else part + total
        else:
            total.baddbmm_(left, right.transpose(1, 2))
    assert total is not None
    total = total if total.ndim == 3 else total.expand(c, *total.shape)
    return total if shift is None else total + shift[:, None]


def _wide(term: Term, c: int) -> bool:
    left, right = term.left, term.right
    rows = c * left.shape[-2]
    kernels = kernels_for(left.images if isinstance(left, Windows) else left)
    return (
        kernels is not None and min(*right.shape[-2:]) >= NARROW and rows >= FEW_ROWS and right.shape[-1] % ALIGNED == 0
    )


def _in_plain_products(terms: list[Term], c: int, shift: Tensor | None) -> Tensor:
    """The sum of the terms, with the rounding of tensor cores: three products of parts in bfloat16, added in
    float32."""
    parts = [] if shift is None else [shift[:, None]]
    for term in terms:
        left, right = term.whole, _numbers(term.right).to(term.right.dtype)
        (high, low), (of_right, rest) = (_in_bfloat16(side) for side in (left.expand(c, *left.shape[-2:]), right))
        parts += [high @ of_right.mT, high @ rest.mT, low @ of_right.mT]
    return sum(parts[1:], parts[0])


def _in_bfloat16(side: Tensor) -> tuple[Tensor, Tensor]:
    """High and low parts, as float32."""
    high = side.bfloat16().to(side.dtype)
    return high, (side - high).bfloat16().to(side.dtype)


def _on_tensor_cores(terms: list[Term], c: int, shift: Tensor | None, splits: Splits) -> Tensor:
    """The sum of the terms. Terms whose left sides differ by source are placed side by side in one product for each
    source."""
    alike, own = ([term for term in terms if (term.left.ndim == 2) is same] for same in (True, False))
    o, total = terms[0].right.shape[-2], None
    for term in alike:
        left, right = _left([term], 1, None).expand(c, -1, -1), _right([term], c, None, splits).transpose(1, 2)
        if total is None:
            total = torch.bmm(left, right, out_dtype=torch.float32)
        else:
            torch.baddbmm(total, left, right, out_dtype=torch.float32, out=total)
    if not own:
        assert total is not None
        return total[:, :, :o] if shift is None else total[:, :, :o] + shift[:, None]
    if len(own) == 1 and shift is None and total is None and own[0].right.ndim == 2:
        found = _with_shared(own[0], c, splits)
        return found.reshape(c, -1, found.shape[1])[:, :, :o]
    left, right = _left(own, c, shift), _right(own, c, shift, splits).transpose(1, 2)
    if total is None:
        return torch.bmm(left, right, out_dtype=torch.float32)[:, :, :o]
    return torch.baddbmm(total, left, right, out_dtype=torch.float32, out=total)[:, :, :o]


def _with_shared(term: Term, c: int, splits: Splits) -> Tensor:
    """A term with a shared weight: the rows of all sources in one product. A weight stored in bfloat16 has no low part,
    so two products suffice, and its parts are not kept."""
    W, plain = term.right, not isinstance(term.left, Windows)
    if plain and isinstance(W, HalfStored) and W.stored.dtype is torch.bfloat16 and len(W) % ALIGNED == 0:
        left, right = _left([term], c, None, blocks=2), torch.cat([W.stored, W.stored], 1)
    else:
        left, right = _left([term], c, None), splits.of(term)
    return torch.mm(left.flatten(0, 1), right.T, out_dtype=torch.float32)


def _left(terms: list[Term], c: int, shift: Tensor | None, blocks: int = 3) -> Tensor:
    """The left sides of some terms as high and low parts in two or three blocks of columns: [c, p, w]."""
    kernels, p = kernels_for(terms[0].right), terms[0].left.shape[-2]
    widths = [blocks * term.right.shape[-1] for term in terms]
    wide = sum(widths) + (0 if shift is None else ALIGNED)
    parts = torch.empty(c, p, wide, dtype=torch.bfloat16, device=terms[0].right.device)
    for term, at in zip(terms, accumulate(widths, initial=0), strict=False):
        if isinstance(term.left, Windows):
            term.left.split_into(parts, at)
        else:
            rows = term.left.reshape(-1, term.left.shape[-1])
            kernels.split_into(rows, parts.view(-1, wide), at, left=True, plus=term.plus, blocks=blocks)
    if shift is not None:
        parts[:, :, -ALIGNED:] = 1
    return parts


def _right(terms: list[Term], c: int, shift: Tensor | None, splits: Splits) -> Tensor:
    """The right sides of some terms as high and low parts: [c, o, w]."""
    kernels, o = kernels_for(terms[0].right), terms[0].right.shape[-2]
    widths = [3 * term.right.shape[-1] for term in terms]
    wide, odd = sum(widths) + (0 if shift is None else ALIGNED), -o % ALIGNED
    parts = torch.empty(c, o + odd, wide, dtype=torch.bfloat16, device=terms[0].right.device)
    for term, at, width in zip(terms, accumulate(widths, initial=0), widths, strict=False):
        if term.right.ndim == 2:
            parts[:, :, at : at + width] = splits.of(term)
            continue
        right = F.pad(term.right, (0, 0, 0, odd)) if odd else term.right
        kernels.split_into(right.reshape(-1, right.shape[-1]), parts.view(-1, wide), at, left=False)
    if shift is not None:
        high = shift.bfloat16()
        parts[:, :, -ALIGNED:] = 0
        parts[:, :o, -ALIGNED], parts[:, :o, 1 - ALIGNED] = high, (shift - high).bfloat16()
    return parts
