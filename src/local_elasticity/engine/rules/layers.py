"""Rules of the functions that weights go into: linear layers, embeddings, convolutions, normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.changes import LowRank, WeightChange
from local_elasticity.engine.difference import (
    Difference,
    Pair,
    Pending,
    added,
    aligned,
    base_of,
    change_of,
    delta_of,
    rule,
)
from local_elasticity.engine.fast_paths.kernels import kernels_for
from local_elasticity.engine.products import Term, Windows, total_of
from local_elasticity.engine.supported import UnsupportedModelError
from local_elasticity.engine.uses import each_axis, padding_of

NARROWING = 2
"""Outputs of a layer per input below which W⁺ δ and ΔW h are two products, so that h is read once for all sources.
Above it, the sum of two results takes more memory traffic than the sum h + δ of each source."""

WIDEST_NORM = 8192
"""The longest row that a kernel normalises at once."""


@rule(F.linear)
def linear(input: Any, weight: Any, bias: Any = None) -> Pair:
    """W⁺(h + δ) + b⁺ − W h − b = W δ + ΔW (h + δ) + Δb."""
    h, W = base_of(input), base_of(weight)
    return F.linear(h, W, base_of(bias)), through(h, delta_of(input), weight, W, bias)


@rule(torch.addmm, Tensor.addmm)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if beta != 1 or alpha != 1 or base_of(input).ndim != 1:
        return input * beta + torch.mm(mat1, mat2) * alpha
    h, W = base_of(mat1), base_of(mat2)
    return torch.addmm(base_of(input), h, W), through(h, delta_of(mat1), mat2, W.T, input, transposed=True)


def through(
    h: Tensor, d: Tensor | None, weight: Any, W: Tensor, bias: Any = None, *, transposed: bool = False
) -> Tensor | None:
    """W δ + ΔW (h + δ) + Δb for W [o, d], which the weight is, or is the transpose of."""
    change, shift = change_of(weight), delta_of(bias)
    dense = None if change is not None and _keeps_vectors(change) else delta_of(weight)
    change = None if dense is not None else change
    if d is None and change is None and dense is None and shift is None:
        return None
    o, size = W.shape
    base, c = h.reshape(-1, size), len(_known(d, change, dense, shift))
    moved = None if d is None else d.reshape(c, -1, size)
    terms = [] if moved is None else [Term(moved, W)]
    if dense is not None:
        right = dense.transpose(1, 2) if transposed else dense
        if moved is not None and o < NARROWING * size:
            terms = [Term(base, right), Term(moved, W + right)]
        else:
            terms.append(Term(base, right) if moved is None else Term(moved, right, base))
    elif change is not None:
        terms += _along_vectors(change, base, moved, c, transposed)
    if terms:
        total = total_of(terms, c, shift)
    else:
        total = (h.new_zeros(c, o) if shift is None else shift)[:, None].expand(c, len(base), o)
    if change is not None:
        total = _at_tokens(change, base, moved, total, transposed)
        total = total - change.decay * F.linear(base if moved is None else base + moved, W) if change.decay else total
    return total.reshape(c, *h.shape[:-1], o)


def _known(d: Tensor | None, change: WeightChange | None, dense: Tensor | None, shift: Tensor | None) -> Tensor:
    """Something that has the sources on its first axis."""
    if change is not None:
        part = change.parts[0]
        return part.a if isinstance(part, LowRank) else part.g
    return next(one for one in (d, dense, shift) if one is not None)


def _keeps_vectors(change: WeightChange) -> bool:
    """Whether no part takes less work multiplied out."""
    return all(part.pays for part in change.parts if isinstance(part, LowRank))


def _along_vectors(change: WeightChange, base: Tensor, moved: Tensor | None, c: int, transposed: bool) -> list[Term]:
    """ΔW (h + δ) = Σ_l q_l (a_l·(h + δ)); a and q change places where the weight was met from the other side."""
    terms = []
    for part in change.parts:
        if isinstance(part, LowRank):
            a, q = (part.a, part.q) if part.transposed is transposed else (part.q, part.a)
            met = total_of([Term(base, a) if moved is None else Term(moved, a, base)], c)
            terms.append(Term(met, q.transpose(1, 2)))
    return terms


def _at_tokens(change: WeightChange, base: Tensor, moved: Tensor | None, total: Tensor, transposed: bool) -> Tensor:
    """ΔW (h + δ) where rows of the weight belong to tokens: g_l·(h + δ) at the output of the token; from the other
    side, g_l times the token's entry of h + δ."""
    for part in change.parts:
        if isinstance(part, LowRank):
            continue
        tokens = part.tokens[:, None].expand(-1, len(base), -1)
        if transposed:
            after = base.expand(len(total), *base.shape) if moved is None else base + moved
            total = total + after.gather(2, tokens) @ part.g
        else:
            met = total_of([Term(base, part.g) if moved is None else Term(moved, part.g, base)], len(total))
            total = total.scatter_add(2, tokens, met)
    return total


@rule(torch.embedding)
def embedding_by_weight(weight: Any, indices: Any, *_: Any, **__: Any) -> Pair:
    """The same function beneath, whose arguments come the other way around."""
    return embedding(indices, weight)


@rule(F.embedding)
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Pair:
    """The change of a token's row: the sum over the source's places with the same token."""
    if max_norm is not None:
        raise UnsupportedModelError("embedding with max_norm")
    tokens, E, change = base_of(input), base_of(weight), change_of(weight)
    base = F.embedding(tokens, E)
    if change is None:
        dense = delta_of(weight)
        assert dense is not None
        return base, dense[:, tokens]
    total: Tensor | None = None
    for part in change.parts:
        if isinstance(part, LowRank):
            q = part.a if part.transposed else part.q
            a = part.q if part.transposed else part.a
            found = q[:, :, tokens.flatten()].transpose(1, 2) @ a
        else:
            found = (part.tokens[:, None] == tokens.flatten()[:, None]).to(part.g.dtype) @ part.g
        total = found if total is None else total + found
    assert total is not None
    delta = total.reshape(len(total), *base.shape)
    return base, delta - change.decay * base if change.decay else delta


@rule(F.conv1d, F.conv2d, F.conv3d)
def convolution(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Pair:
    """The same as a linear layer at every patch; ΔW_i is multiplied out where it has more places than that saves.

    Patches are rows with their channels last, and so are the images that come out: what is copied then lies together.
    """
    h, d, W, b = base_of(input), delta_of(input), base_of(weight), base_of(bias)
    function = (F.conv1d, F.conv2d, F.conv3d)[W.ndim - 3]
    border = padding_of(padding, W.shape[2:], dilation)
    geometry = {"stride": stride, "padding": padding if border is None else border, "dilation": dilation}
    change = change_of(weight)
    moves = change is not None or delta_of(weight) is not None
    if h.ndim != W.ndim:
        raise UnsupportedModelError("a convolution of one example without its axis")
    if not moves and d is None:
        base, delta = function(h, W, b, **geometry, groups=groups), None
    elif not moves or groups > 1 or border is None:
        base = function(h, W, b, **geometry, groups=groups)
        delta = _grouped(function, h, d, W, delta_of(weight) if moves else None, geometry, groups)
    else:
        base, delta = _at_patches(h, d, weight, W, b, geometry)
    return base, added(delta, delta_of(bias), base, channels=True)


def _grouped(
    function: Callable[..., Tensor],
    h: Tensor,
    d: Tensor | None,
    W: Tensor,
    moved: Tensor | None,
    geometry: dict[str, Any],
    groups: int,
) -> Tensor:
    """W⁺ δ + ΔW h, the sources as further groups of channels."""
    if moved is None:
        assert d is not None
        return function(d.flatten(0, 1), W, **geometry, groups=groups).unflatten(0, d.shape[:2])
    c, kernels = len(moved), kernels_for(moved) if groups == h.shape[1] == len(W) and h.ndim == 4 else None
    if kernels is not None and not isinstance(geometry["padding"], str):
        options = [each_axis(geometry[name], 2) for name in ("stride", "padding", "dilation")]
        places = Windows(h[None], tuple(W.shape[2:]), geometry).places
        return kernels.depthwise_change_on_gpu(h, d, W, moved, places, *options)

    def each_source(x: Tensor, filters: Tensor) -> Tensor:
        side_by_side = x.transpose(0, 1).flatten(1, 2)
        out = function(side_by_side, filters.flatten(0, 1), **geometry, groups=c * groups)
        found: Tensor = out.unflatten(1, (c, -1))
        return found.transpose(0, 1)

    from_filters = each_source(h.expand(c, *h.shape), moved)
    return from_filters if d is None else from_filters + each_source(d, W + moved)


def _at_patches(
    h: Tensor, d: Tensor | None, weight: Any, W: Tensor, b: Tensor | None, geometry: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """W δ + ΔW (h + δ) at every patch."""
    at_h, kernel = Windows(h[None], tuple(W.shape[2:]), geometry), tuple(W.shape[2:])
    at_d = None if d is None else Windows(d, kernel, geometry)
    sizes = torch.Size((len(h), *at_h.places))
    flat, rows = W.movedim(1, -1).flatten(1), at_h.rows()[0]
    base = _as_images(F.linear(rows, flat, b)[None], sizes)[0]
    change = change_of(weight)
    vectors = None if change is None else _few_patches(change)
    if vectors is not None:
        moved = _at_few_patches(vectors, W, rows, at_d)
    else:
        dense = delta_of(weight)
        assert dense is not None
        dense = dense.movedim(2, -1).flatten(2)
        terms = [Term(rows, dense)] + ([] if at_d is None else [Term(at_d, flat + dense)])
        moved = total_of(terms, len(dense))
    return base, _as_images(moved, sizes)


def _few_patches(change: WeightChange) -> LowRank | None:
    """The vectors of a change that take less work than its matrix, patches of h and of δ being met one by one."""
    part = change.parts[0]
    if len(change.parts) > 1 or change.decay or not isinstance(part, LowRank):
        return None
    (places, d), o = part.a.shape[1:], part.q.shape[2]
    return part if places * (2 * d + o) < d * o else None


def _at_few_patches(vectors: LowRank, W: Tensor, at_h: Tensor, at_d: Windows | None) -> Tensor:
    """Σ_l q_il (a_il·patch)."""
    c = len(vectors.a)
    met = total_of([Term(at_h, vectors.a)] + ([] if at_d is None else [Term(at_d, vectors.a)]), c)
    through_weight = [] if at_d is None else [Term(at_d, W.movedim(1, -1).flatten(1), made_of=W)]
    return total_of([Term(met, vectors.q.transpose(1, 2)), *through_weight], c)


def _as_images(moved: Tensor, sizes: torch.Size) -> Tensor:
    """[c, t · places, channels] as [c, t, channels, …], channels last in memory."""
    images: Tensor = moved.unflatten(1, sizes)
    return images.movedim(-1, 2)


@rule(F.batch_norm)
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Pair | Difference:
    """γ⁺x̂⁺ + β⁺ − γx̂ − β = (γ + Δγ) δ/σ + Δγ x̂ + Δβ, with frozen statistics."""
    if training or running_mean is None or running_var is None:
        raise UnsupportedModelError("batch_norm of the batch's own statistics")
    if delta_of(running_mean) is not None or delta_of(running_var) is not None:
        raise UnsupportedModelError("batch_norm with statistics that move")
    h, d, mean, variance = base_of(input), delta_of(input), base_of(running_mean), base_of(running_var)
    base = F.batch_norm(h, mean, variance, base_of(weight), base_of(bias), False, momentum, eps)
    channels = (1, -1, *[1] * (h.ndim - 2))
    inverse = (variance.view(channels) + eps).rsqrt()
    moved = delta_of(weight)
    kernels = kernels_for(d) if d is not None and d.shape[1:] == h.shape and h.ndim > 1 else None
    if kernels is not None:
        scale = torch.ones_like(mean) if weight is None else base_of(weight)
        parts = h, d, mean, inverse.flatten(), scale, moved, delta_of(bias)
        return Difference.of(base, None, pending=Pending.of(partial(kernels.scale_change_on_gpu, *parts), h))
    scale = inverse if weight is None else base_of(weight).view(channels) * inverse
    delta = None if d is None else d * scale
    if moved is not None:
        normal = (h - mean.view(channels)) * inverse
        after = normal if d is None else normal + d * inverse
        moved = moved.view(len(moved), *channels) * after
        delta = moved if delta is None else delta + moved
    return base, added(delta, delta_of(bias), base, channels=True)


@rule(F.layer_norm, torch.layer_norm)
def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Pair:
    return _last_axes(input, len(normalized_shape), weight, bias, eps, centred=True)


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Pair:
    eps = torch.finfo(base_of(input).dtype).eps if eps is None else eps
    return _last_axes(input, len(normalized_shape), weight, None, eps, centred=False)


def _last_axes(input: Any, axes: int, weight: Any, bias: Any, eps: float, *, centred: bool) -> Pair:
    h, d = base_of(input), delta_of(input)
    fits = d is not None and axes == 1 and d.shape[1:] == h.shape and h.shape[-1] <= WIDEST_NORM
    kernels = kernels_for(d) if d is not None and fits else None
    if kernels is None or d is None:
        return _affine(*_normal(h, d, [-1 - i for i in range(axes)], eps, centred=centred), weight, bias)
    x = h - h.mean(-1, keepdim=True) if centred else h
    root = (x.square().mean(-1) + eps).sqrt()
    base = _affine(x / root[..., None], None, base_of(weight), base_of(bias))[0]
    moved = delta_of(weight), delta_of(bias)
    return base, kernels.norm_change_on_gpu(x, root, d, base_of(weight), *moved, eps, centred=centred)


@rule(F.group_norm, torch.group_norm)
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Pair:
    h, d = base_of(input), delta_of(input)
    groups = (h.shape[0], num_groups, -1)
    parted = None if d is None else d.reshape(len(d), *groups)
    normal, moved = _normal(h.reshape(groups), parted, [-1], eps, centred=True)
    moved = None if moved is None or d is None else moved.reshape(d.shape)
    return _affine(normal.reshape(h.shape), moved, weight, bias, channels=True)


@rule(F.instance_norm)
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Pair | Difference:
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return group_norm(input, base_of(input).shape[1], weight, bias, eps)


def _normal(h: Tensor, d: Tensor | None, axes: list[int], eps: float, *, centred: bool) -> Pair:
    """x̂ = x̃ r over some axes, x̃ = h − mean and r = v^{-1/2}, and its change d̃ r⁺ + x̃ Δr with
    Δv = mean(d̃(2x̃ + d̃)), Δr = −Δv / (√v √v⁺ (√v + √v⁺)). A root mean square has no mean to subtract.
    """
    x = h - h.mean(axes, keepdim=True) if centred else h
    root = (x.square().mean(axes, keepdim=True) + eps).sqrt()
    if d is None:
        return x / root, None
    d = d - d.mean(axes, keepdim=True) if centred else d
    moved = (d * (2 * x + d)).mean(axes, keepdim=True)
    after = (root.square() + moved).clamp_min(eps).sqrt()
    return x / root, d / after - x * (moved / (root * after * (root + after)))


def _affine(normal: Tensor, moved: Tensor | None, weight: Any, bias: Any, *, channels: bool = False) -> Pair:
    """γ Δx̂ + Δγ (x̂ + Δx̂) + Δβ."""
    sizes = (1, -1, *[1] * (normal.ndim - 2)) if channels else None

    def spread(p: Tensor) -> Tensor:
        return p if sizes is None else p.view(sizes)

    base = normal if weight is None else normal * spread(base_of(weight))
    base = base if bias is None else base + spread(base_of(bias))
    delta = moved if moved is None or weight is None else moved * spread(base_of(weight))
    scaled = delta_of(weight)
    if scaled is not None:
        scaled = scaled.view(len(scaled), *sizes) if sizes else aligned(scaled, base.ndim)
        scaled = scaled * (normal if moved is None else normal + moved)
        delta = scaled if delta is None else delta + scaled
    return base, added(delta, delta_of(bias), base, channels=channels)
