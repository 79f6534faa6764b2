"""Rules of functions that move, gather or average activations, and of pooling by maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import (
    IN_PLACE,
    LINEAR,
    Difference,
    Pair,
    aligned,
    base_of,
    delta_of,
    rule,
    vectorized_over_sources,
)
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.uses import each_axis


def _later(dim: int) -> int:
    """The same axis with one more in front."""
    return dim + 1 if dim >= 0 else dim


def _listed(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes or axes that were given one by one, or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes


def _reshape(d: Tensor, *shape: Any) -> Tensor:
    return d.reshape(len(d), *_listed(shape))


def _permute(d: Tensor, *dims: Any) -> Tensor:
    return d.permute(0, *(dim % (d.ndim - 1) + 1 for dim in _listed(dims)))


def _transpose(d: Tensor, dim0: int, dim1: int) -> Tensor:
    return d.transpose(_later(dim0), _later(dim1))


def _flatten(d: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return d.flatten(_later(start_dim), _later(end_dim)) if d.ndim > 1 else d[:, None]


def _unflatten(d: Tensor, dim: int, sizes: Any) -> Tensor:
    return d.unflatten(_later(dim), sizes)


def _unsqueeze(d: Tensor, dim: int) -> Tensor:
    return d.unsqueeze(_later(dim))


def _expand(d: Tensor, *sizes: Any) -> Tensor:
    sizes = _listed(sizes)
    return aligned(d, len(sizes)).expand(len(d), *sizes)


def _reduced(function: Any) -> Any:
    def reduced(
        d: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        dim = axis if dim is None else dim
        dims = tuple(range(1, d.ndim)) if dim is None else tuple(map(_later, (dim,) if isinstance(dim, int) else dim))
        return function(d, dims, keepdim, dtype=dtype) if dims else d

    return reduced


def _by_channel(function: Any) -> Any:
    """Of every source's signals or images as if they were further ones; vmap has no rule for some orders in memory."""

    def pooled(d: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(d.flatten(0, 1), *args, **kwargs).unflatten(0, d.shape[:2])

    return pooled


def _chunk(d: Tensor, chunks: int, dim: int = 0) -> Any:
    return d.chunk(chunks, _later(dim))


def _split(d: Tensor, split_size: Any, dim: int = 0) -> Any:
    return d.split(split_size, _later(dim))


def _narrow(d: Tensor, dim: int, start: int, length: int) -> Tensor:
    return d.narrow(_later(dim), start, length)


def _select(d: Tensor, dim: int, index: int) -> Tensor:
    return d.select(_later(dim), index)


def _item(d: Tensor, index: Any) -> Tensor:
    index = index if isinstance(index, tuple) else (index,)
    index = tuple(base_of(one) for one in index)
    if sum(isinstance(one, (Tensor, list)) for one in index) <= 1:
        return d[(slice(None), *index)]
    return torch.vmap(lambda one: one[index])(d)


def _movedim(d: Tensor, source: Any, destination: Any) -> Tensor:
    one = isinstance(source, int)
    at, to = (tuple(map(_later, (axes,) if one else axes)) for axes in (source, destination))
    return d.movedim(at, to)


def _same(d: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return d


def _cast(d: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("memory_format", None)
    found = d.to(*(base_of(one) for one in args), **kwargs)
    if found.is_floating_point() and found.dtype.itemsize >= d.dtype.itemsize:
        return found
    if found.dtype.itemsize < 4 or not found.is_floating_point():
        raise UnsupportedModelError(f"a cast to {found.dtype}".replace("torch.", ""))
    return found


def _of_both(names: str) -> list[Any]:
    """Functions of torch and methods of tensors, by name."""
    return [getattr(home, name) for name in names.split() for home in (torch, Tensor)]


_DIRECT: dict[str, Any] = {
    "reshape": _reshape,
    "permute": _permute,
    "transpose swapaxes": _transpose,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "unsqueeze": _unsqueeze,
    "mean": _reduced(torch.mean),
    "sum": _reduced(torch.sum),
    "chunk": _chunk,
    "split": _split,
    "narrow": _narrow,
    "select": _select,
    "movedim moveaxis": _movedim,
    "clone detach": _same,
    # vectorised
    "squeeze roll flip cumsum tile gather index_select take_along_dim repeat_interleave": None,
    "tril triu diagonal unbind swapdims t scatter_add index_add": None,
}
LINEAR.update({function: direct for names, direct in _DIRECT.items() for function in _of_both(names)})
LINEAR.update(
    {
        Tensor.expand: _expand,
        Tensor.__getitem__: _item,
        Tensor.contiguous: _same,
        Tensor.to: _cast,
        Tensor.float: lambda d: _cast(d, torch.float32),
        Tensor.double: lambda d: _cast(d, torch.float64),
        Tensor.type_as: lambda d, other: _cast(d, other.dtype),
    }
)
_POOLS = F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d
LINEAR.update({pool: _by_channel(pool) for pool in _POOLS})

LINEAR.update(
    dict.fromkeys(
        [
            *(getattr(Tensor, name) for name in ("repeat", "expand_as", "reshape_as", "unfold")),
            *(F.interpolate, F.pixel_shuffle, F.pixel_unshuffle, F.unfold, F.fold),
            *(torch.rot90, torch.channel_shuffle, Tensor.T.__get__, Tensor.mT.__get__),  # type: ignore[attr-defined]
        ]
    )
)


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Any], dim: int = 0) -> Pair:
    tensors = [one for one in tensors if one.ndim != 1 or one.numel()]  # torch takes no notice of empty ones
    return torch.cat([base_of(one) for one in tensors], dim), torch.cat(_all_deltas(tensors), _later(dim))


IN_PLACE.update({Tensor.scatter_add_: torch.scatter_add, Tensor.index_add_: torch.index_add})


@rule(torch.hstack)
def hstack(tensors: Sequence[Any]) -> Any:
    flat = all(one.ndim < 2 for one in tensors)
    return torch.cat([one.reshape(-1) if flat else one for one in tensors], 0 if flat else 1)


@rule(torch.column_stack)
def column_stack(tensors: Sequence[Any]) -> Any:
    return torch.cat([one.reshape(-1, 1) if one.ndim < 2 else one for one in tensors], 1)


@rule(torch.vstack, torch.row_stack)
def vstack(tensors: Sequence[Any]) -> Any:
    return torch.cat([one.reshape(1, -1) if one.ndim < 2 else one for one in tensors], 0)


@rule(torch.stack)
def stack(tensors: Sequence[Any], dim: int = 0) -> Pair:
    return torch.stack([base_of(one) for one in tensors], dim), torch.stack(_all_deltas(tensors), _later(dim))


def _all_deltas(tensors: Sequence[Any]) -> list[Tensor]:
    """Differences of tensors side by side: a constant is one that does not differ."""
    deltas = [delta_of(one) for one in tensors]
    c = next(len(d) for d in deltas if d is not None)
    pairs = zip(tensors, deltas, strict=True)
    return [torch.zeros_like(base_of(one)).expand(c, *one.shape) if d is None else d for one, d in pairs]


@rule(Tensor.__setitem__)
def set_item(x: Any, index: Any, value: Any) -> None:
    """x[index] = value."""
    if not isinstance(x, Difference):
        raise UnsupportedModelError("a value that moves, written into a part of another tensor")
    index = index if isinstance(index, tuple) else (index,)
    index = tuple(base_of(one) for one in index)
    moved, dx = delta_of(value), delta_of(x)
    known = moved if moved is not None else dx
    assert known is not None
    after = x.new_zeros(()).expand(len(known), *x.shape).clone() if dx is None else dx.clone()
    after[(slice(None), *index)] = 0 if moved is None else aligned(moved, base_of(x)[index].ndim)
    base_of(x)[index] = base_of(value)
    x.set_difference(base_of(after))


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
def dropout(x: Any, p: float = 0.5, training: bool = True) -> Pair:
    if training and p > 0:
        raise UnsupportedModelError("dropout in training mode")
    return base_of(x), delta_of(x)


@rule(F.pad)
def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Pair:
    """Differences are padded with zeros, whatever the constant."""
    same = {"pad": pad, "mode": mode}
    return F.pad(base_of(x), **same, value=value), vectorized_over_sources(F.pad, (x,), same)


@rule(torch.amax, Tensor.amax)
def amax(x: Any, dim: Any = (), keepdim: bool = False) -> Pair:
    """max(h + δ) − max(h) = max((h − max(h)) + δ)."""
    h, d = base_of(x), delta_of(x)
    assert d is not None
    dims = (dim,) if isinstance(dim, int) else tuple(dim) or tuple(range(h.ndim))
    after = d + (h - torch.amax(h, dims, keepdim=True))
    return torch.amax(h, dims, keepdim=keepdim), torch.amax(after, tuple(map(_later, dims)), keepdim=keepdim)


@rule(torch.max, Tensor.max)
def largest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Of all numbers, of two tensors, or along an axis; where the maximum is may change with the step."""
    if dim is None:
        return torch.amax(x)
    if isinstance(dim, Tensor):
        return torch.maximum(x, dim)
    return _extreme(torch.amax(x, dim, keepdim), base_of(x).max(dim, keepdim))


@rule(torch.min, Tensor.min)
def least(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return torch.amin(x)
    if isinstance(dim, Tensor):
        return torch.minimum(x, dim)
    return _extreme(torch.amin(x, dim, keepdim), base_of(x).min(dim, keepdim))


def _extreme(values: Any, before: Any) -> Any:
    """The values, and places that must not be used."""
    return type(before)((values, Difference.unknown(before.indices, "the place of a maximum or minimum")))


@rule(torch.amin, Tensor.amin)
def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return -torch.amax(-x, dim, keepdim)


@rule(F.max_pool1d, torch.max_pool1d)
def max_pool1d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, **options: Any
) -> Any:
    kernel, step, spacing = ((1, *each_axis(v, 1)) for v in (kernel_size, stride or kernel_size, dilation))
    return F.max_pool2d(x.unsqueeze(-2), kernel, step, (0, *each_axis(padding, 1)), spacing, **options).squeeze(-2)


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
    kernel, step, border, spacing = (each_axis(v, 2) for v in (kernel_size, stride or kernel_size, padding, dilation))
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
