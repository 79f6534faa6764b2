"""Rules of functions that move, gather or average activations, and of pooling by maximum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from local_elasticity.engine.difference import (
    LINEAR,
    Difference,
    Pair,
    aligned,
    base_of,
    delta_of,
    rule,
    vectorized_over_sources,
    write,
)
from local_elasticity.engine.supported import ChangedChoiceError, UnsupportedModelError
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
    found = d.to(*args, **kwargs)
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
    "tril triu diagonal diag_embed unbind swapdims t": None,
    "tensor_split split_with_sizes ravel adjoint positive": None,
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
            *(torch.rot90, torch.channel_shuffle, torch.broadcast_to, Tensor.broadcast_to),
            *(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH")),
        ]
    )
)


@rule(Tensor.type)
def cast_by_name(x: Any, dtype: Any = None, non_blocking: bool = False) -> Any:
    """A cast; without a type, the name of the one that x has."""
    cast = base_of(x).type() if dtype is None else base_of(x).type(dtype)
    return cast if dtype is None else x.to(cast.dtype)


@rule(torch.view_as_complex)
def view_as_complex(x: Any) -> Pair:
    h, d = base_of(x), delta_of(x)
    assert d is not None
    return torch.view_as_complex(h.contiguous()), torch.view_as_complex(d.contiguous())


LINEAR.update({function: function for function in (torch.view_as_real, torch.real, torch.imag)})
LINEAR.update({Tensor.real.__get__: torch.real, Tensor.imag.__get__: torch.imag})  # type: ignore[attr-defined]


@rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Any], dim: int = 0) -> Pair:
    tensors = [one for one in tensors if one.ndim != 1 or one.numel()]  # torch takes no notice of empty ones
    return torch.cat([base_of(one) for one in tensors], dim), torch.cat(_all_deltas(tensors), _later(dim))


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
    if _puts_places_first(index):
        raise UnsupportedModelError("a write to places that tensors name on axes with another one between them")
    value = value.to(x.dtype) if isinstance(value, Tensor) else value
    moved, dx = delta_of(value), delta_of(x)
    known = moved if moved is not None else dx
    assert known is not None
    after = x.base.new_zeros(len(known), *x.shape) if dx is None else dx.clone()
    after[(slice(None), *index)] = 0 if moved is None else aligned(moved, base_of(x)[index].ndim)
    write(x, lambda base: base.__setitem__(index, base_of(value)), after)


def _puts_places_first(index: tuple[Any, ...]) -> bool:
    """Whether tensors name places on axes that are not side by side, so that indexing puts these places first."""
    named = [i for i, one in enumerate(index) if isinstance(one, (Tensor, list, int))]
    tensors = any(isinstance(index[i], (Tensor, list)) for i in named)
    return tensors and named != list(range(named[0], named[0] + len(named)))


rule(torch.scatter_add, Tensor.scatter_add)(lambda *args, **named: _jointly(torch.scatter_add, *args, **named))
rule(torch.index_add, Tensor.index_add)(lambda *args, **named: _jointly(torch.index_add, *args, **named))
rule(torch.index_copy, Tensor.index_copy)(lambda *args, **named: _jointly(torch.index_copy, *args, **named))


@rule(torch.select_scatter, Tensor.select_scatter)
def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    return _jointly(torch.select_scatter, x, src.to(x.dtype), dim, index)


@rule(torch.slice_scatter, Tensor.slice_scatter)
def slice_scatter(x: Any, src: Any, *where: Any, **named: Any) -> Any:
    return _jointly(torch.slice_scatter, x, src.to(x.dtype), *where, **named)


@rule(torch.scatter, Tensor.scatter)
def scatter(x: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: str | None = None) -> Any:
    """x[…, index, …] = src, or a number."""
    if reduce is not None:
        raise UnsupportedModelError(f"scatter with reduce={reduce!r}")
    src, index = value if src is None else src, base_of(index)
    src = src if isinstance(src, Tensor) else torch.full(index.shape, src, dtype=x.dtype, device=x.device)
    return _jointly(torch.scatter, x, dim, index, src)


@rule(torch.index_fill, Tensor.index_fill)
def index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    if delta_of(value) is not None:
        raise UnsupportedModelError("index_fill with a value that moves")
    h, d, index = base_of(x), delta_of(x), base_of(index)
    assert d is not None
    return torch.index_fill(h, dim, index, base_of(value)), torch.index_fill(d, _later(dim), index, 0)


@rule(torch.index_put, Tensor.index_put)
def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return _jointly(torch.index_put, x, tuple(map(base_of, indices)), values, accumulate)


@rule(torch.masked_scatter, Tensor.masked_scatter)
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The values of `source`, in order, where the mask is true."""
    mask = base_of(mask).expand(x.shape)
    return _jointly(torch.index_put, x, mask.nonzero(as_tuple=True), source.reshape(-1)[: mask.sum()])


@rule(torch.masked_select, Tensor.masked_select)
def masked_select(x: Any, mask: Any) -> Any:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return x.expand(shape)[base_of(mask).expand(shape)]


def _jointly(function: Any, *args: Any, **kwargs: Any) -> Pair:
    """A function that is linear in all of its tensors of numbers together."""
    base = function(*tree_map(base_of, args), **tree_map(base_of, kwargs))
    return base, vectorized_over_sources(function, args, kwargs)


@rule(torch._VF._pack_padded_sequence)
def pack_padded_sequence(x: Any, lengths: Any, batch_first: bool) -> tuple[Any, ...]:
    """The sources lie on a last axis, as further features."""
    h, d, lengths = base_of(x), delta_of(x), base_of(lengths)
    assert d is not None
    base, sizes = torch._VF._pack_padded_sequence(h, lengths, batch_first)
    moved = torch._VF._pack_padded_sequence(d.movedim(0, -1), lengths, batch_first)[0]
    return Difference.of(base, moved.movedim(-1, 0)), sizes


@rule(torch._VF._pad_packed_sequence)
def pad_packed_sequence(x: Any, sizes: Any, batch_first: bool, value: float, length: int) -> tuple[Any, ...]:
    h, d, sizes = base_of(x), delta_of(x), base_of(sizes)
    assert d is not None
    base, lengths = torch._VF._pad_packed_sequence(h, sizes, batch_first, value, length)
    moved = torch._VF._pad_packed_sequence(d.movedim(0, -1), sizes, batch_first, 0.0, length)[0]
    return Difference.of(base, moved.movedim(-1, 0)), lengths


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


@rule(torch.topk, Tensor.topk)
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The values at the places before the step, which must be those after it."""
    h, d = base_of(x), delta_of(x)
    assert d is not None
    before = torch.topk(h, k, dim, largest, sorted)
    places = _unchanged("topk", before.indices, torch.topk(h + d, k, _later(dim), largest, sorted).indices)
    moved = d.gather(_later(dim), before.indices.expand(len(d), *before.indices.shape))
    return type(before)((Difference.of(before.values, moved), places))


@rule(torch.argmax, Tensor.argmax)
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    h, d = base_of(x), delta_of(x)
    assert d is not None
    if dim is None:
        h, d = h.flatten(), d.flatten(1)
    after = torch.argmax(h + d, -1 if dim is None else _later(dim), keepdim and dim is not None)
    return _unchanged("argmax", torch.argmax(base_of(x), dim, keepdim), after)


def _unchanged(name: str, before: Tensor, after: Tensor) -> Difference:
    """Places that no step of these changes."""
    if not torch.equal(after.reshape(len(after), -1), before.flatten().expand(len(after), -1)):
        raise ChangedChoiceError(f"{name}, whose choice changes with the step,")
    return Difference.of(before, None)


@rule(torch.amin, Tensor.amin)
def amin(x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return -torch.amax(-x, dim, keepdim)


@rule(F.max_pool1d, torch.max_pool1d)
def max_pool1d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, **options: Any
) -> Any:
    kernel, step, spacing = ((1, *each_axis(v, 1)) for v in (kernel_size, stride or kernel_size, dilation))
    return F.max_pool2d(x.unsqueeze(-2), kernel, step, (0, *each_axis(padding, 1)), spacing, **options).squeeze(-2)


def _max_pool(axes: int) -> Any:
    def max_pool(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Pair:
        """max(h + δ) − max(h) = max((h − max(h)) + δ) over each window; h − max(h) is 0 where the maximum was."""
        if return_indices:
            raise UnsupportedModelError("a pool by maximum with indices")
        h, d = base_of(x), delta_of(x)
        assert d is not None
        pool = F.max_pool3d if axes == 3 else F.max_pool2d
        base = pool(h, kernel_size, stride, padding, dilation, ceil_mode)
        given = kernel_size, stride or kernel_size, padding, dilation
        kernel, step, border, spacing = (each_axis(one, axes) for one in given)
        reach = [s * (n - 1) for s, n in zip(step, base.shape[-axes:], strict=True)]
        ends = [r + s * (k - 1) + 1 for r, s, k in zip(reach, spacing, kernel, strict=True)]
        beyond = [max(0, end - n - before) for end, n, before in zip(ends, h.shape[-axes:], border, strict=True)]
        if any(border) or any(beyond):
            edges = [end for both in zip(border[::-1], beyond[::-1], strict=True) for end in both]
            h, d = F.pad(h, edges, value=-torch.inf), F.pad(d.flatten(0, 1), edges).unflatten(0, d.shape[:2])
        best: Tensor | None = None
        for offsets in product(*map(range, kernel)):
            starts = [i * s for i, s in zip(offsets, spacing, strict=True)]
            window: Any = (..., *(slice(i, i + r + 1, s) for i, r, s in zip(starts, reach, step, strict=True)))
            after = d[window] + (h[window] - base)
            best = after if best is None else torch.maximum(best, after, out=best)
        assert best is not None
        return base, best

    return max_pool


def _adaptive(axes: int) -> Any:
    def pool(x: Any, output_size: Any, return_indices: bool = False) -> Any:
        """One axis after the other: windows are products of intervals, which may overlap."""
        if return_indices:
            raise UnsupportedModelError("a pool by maximum with indices")
        sizes = (output_size,) * axes if isinstance(output_size, int) else output_size
        for axis, size in zip(range(-axes, 0), sizes, strict=True):
            n = x.shape[axis]
            if size is not None and size != n:
                ends = [(i * n // size, -(-(i + 1) * n // size)) for i in range(size)]
                x = torch.stack([x.narrow(axis, start, end - start).amax(axis) for start, end in ends], axis)
        return x

    return pool


rule(torch.argmin, Tensor.argmin)(lambda x, dim=None, keepdim=False: argmax(-x, dim, keepdim))
rule(F.max_pool2d, torch.max_pool2d)(_max_pool(2))
rule(F.max_pool3d, torch.max_pool3d)(_max_pool(3))
rule(F.adaptive_max_pool1d)(_adaptive(1))
rule(F.adaptive_max_pool2d)(_adaptive(2))
rule(F.adaptive_max_pool3d)(_adaptive(3))
