"""The weights after a step: all of them in one piece of memory, and the share of the step that rounding left of it."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from local_elasticity.engine.replica import Params

SAMPLED_ROWS, SAMPLED = 16, 1 << 14
"""Rows and weights of each tensor that are sampled to see which share of the step rounding left."""

ALIGNED = 64
"""Parameters in one piece of memory begin at multiples of this many numbers, as fast kernels require."""


class Pieces:
    """Tensors like some parameters, in one piece of memory for each precision: few operations step them all."""

    def __init__(self, like: Params) -> None:
        device = next(iter(like.values())).device
        layouts = {name: torch.empty_like(p, device="meta") for name, p in like.items()}
        places: dict[torch.dtype, list[Tensor]] = {}
        offsets: dict[torch.dtype, int] = {}
        at: dict[str, int] = {}
        for name, layout in layouts.items():
            at[name] = offsets.get(layout.dtype, 0)
            places.setdefault(layout.dtype, []).append(at[name] + _sampled_places(layout, device))
            offsets[layout.dtype] = at[name] + -(-layout.numel() // ALIGNED) * ALIGNED
        self.whole = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in offsets.items()}
        self.parts = {
            name: self.whole[layout.dtype].as_strided(layout.shape, layout.stride(), at[name])
            for name, layout in layouts.items()
        }
        self._places = {dtype: torch.cat(found) for dtype, found in places.items()}
        by_dtype = sorted(layouts.items(), key=lambda one: list(places).index(one[1].dtype))
        self.stand_for = _stands_for(tuple((name, layout.shape) for name, layout in by_dtype), device)

    def tensors(self) -> Params:
        """The tensors as new objects, whose memory a recurrent layer may replace by its own."""
        return {name: part.detach() for name, part in self.parts.items()}

    def put(self, values: Params) -> None:
        """Copy some of the tensors."""
        if values:
            torch._foreach_copy_([self.parts[name] for name in values], list(values.values()))

    def put_alone(self, values: Params) -> None:
        """Copy some of the tensors; the others become zero."""
        if len(values) < len(self.parts):
            torch._foreach_zero_(list(self.whole.values()))
        self.put(values)

    def step(self, start: Pieces, moved: Pieces, scale: float) -> None:
        """Become start + scale · moved."""
        for dtype, whole in self.whole.items():
            torch.add(start.whole[dtype], moved.whole[dtype], alpha=scale, out=whole)

    def sampled(self) -> Tensor:
        """Some of all numbers."""
        parts = [whole[self._places[dtype]] for dtype, whole in self.whole.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def realized_step(params: Params, after: Params, gradient: Params, moved: Params) -> Tensor:
    """⟨g, fl(w + Δ) − w⟩ / ⟨g, Δ⟩ for Δ = moved, from a sample of the weights; 1 if there is no step."""

    def some(part: Params) -> Tensor:
        return torch.cat([part[name][_sample(part[name].shape)].reshape(-1) for name in params])

    before, there, g = some(params), some(after), some(gradient)
    stand_for = _stands_for(tuple((name, p.shape) for name, p in params.items()), g.device)
    return realized_share(before, there, g, some(moved), stand_for, 1.0)


def realized_share(before: Tensor, there: Tensor, g: Tensor, step: Tensor, stand_for: Tensor, scale: float) -> Tensor:
    """The same from samples of the weights before and there, of the gradient and of what was moved."""
    g = g * stand_for.to(g.dtype)
    total = torch.dot(g, step) * scale
    return torch.where(total == 0, torch.ones_like(total), torch.dot(g, there - before) / total)


@lru_cache(maxsize=8)
def _stands_for(shapes: tuple[tuple[str, torch.Size], ...], device: torch.device) -> Tensor:
    """How many weights each of those that are looked at stands for."""
    with torch.no_grad():
        sizes = [(shape.numel(), math.prod(len(part) for part in _ranges(shape))) for _, shape in shapes]
        return torch.cat([torch.full((count,), size / count, device=device) for size, count in sizes])


def _sample(shape: torch.Size) -> tuple[slice, ...]:
    """Some rows, evenly spaced, and the first columns of each."""
    if not shape:
        return ()
    rows = slice(None, None, max(1, shape[0] // SAMPLED_ROWS))
    if len(shape) == 1:
        return (rows,)
    in_a_column = len(range(*rows.indices(shape[0]))) * math.prod(shape[2:])
    return rows, slice(0, max(1, SAMPLED // in_a_column))


def _ranges(shape: torch.Size) -> list[range]:
    """The same as indices along each axis."""
    chosen = _sample(shape) + (slice(None),) * len(shape)
    return [range(*part.indices(size)) for part, size in zip(chosen, shape, strict=False)]


def _sampled_places(layout: Tensor, device: torch.device) -> Tensor:
    """Where the sample of a tensor lies in its memory."""
    found = torch.zeros((), dtype=torch.long, device=device)
    for indices, stride in zip(_ranges(layout.shape), layout.stride(), strict=True):
        found = found[..., None] + stride * torch.arange(indices.start, indices.stop, indices.step, device=device)
    return found.reshape(-1)
