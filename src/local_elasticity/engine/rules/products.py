"""Rules of products between activations, and of what attention is made of: softmax and its kin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from local_elasticity.engine.difference import Pair, added, aligned, base_of, delta_of, rule
from local_elasticity.engine.fast_paths.kernels import kernels_for, masked_below
from local_elasticity.engine.products import splits_numbers
from local_elasticity.engine.rules.layers import through
from local_elasticity.engine.supported import UnsupportedModelError


def telescoped(function: Callable[..., Tensor], *operands: Any) -> Pair:
    """A function that is linear in each of its operands: Σ_j f(x_1 … x_{j−1}, Δx_j, x⁺_{j+1} … x⁺_r)."""
    bases, deltas = [base_of(x) for x in operands], [delta_of(x) for x in operands]
    total: Tensor | None = None
    for j, delta in enumerate(deltas):
        if delta is None:
            continue
        later = [b if d is None else b + d for b, d in zip(bases[j + 1 :], deltas[j + 1 :], strict=True)]
        axes = [None] * j + [0] + [None if d is None else 0 for d in deltas[j + 1 :]]
        part = torch.vmap(function, in_dims=tuple(axes))(*bases[:j], delta, *later)
        total = part if total is None else total + part
    return function(*bases), total


@rule(torch.matmul, torch.mm, torch.bmm, torch.linalg.matmul)
@rule(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__)
def matmul(x: Any, y: Any) -> Pair:
    """Δ = Δa b⁺ + a Δb; with a matrix on the right it is a linear layer."""
    h, g = base_of(x), base_of(y)
    if h.ndim < 2 or g.ndim < 2:
        return telescoped(torch.matmul, x, y)
    base, dx = h @ g, delta_of(x)
    if g.ndim == 2:
        return base, through(h, dx, y, g.T, transposed=True)
    dy = delta_of(y)
    dx = None if dx is None else aligned(dx, base.ndim)
    dy = None if dy is None else aligned(dy, base.ndim)
    total = None if dx is None else dx @ (g if dy is None else g + dy)
    part = None if dy is None else h @ dy
    return base, part if total is None else total if part is None else total.add_(part)


@rule(torch.tensordot)
def tensordot(a: Any, b: Any, dims: Any = 2, out: None = None) -> Pair:
    dims = base_of(dims)
    return telescoped(lambda x, y: torch.tensordot(x, y, dims), a, b)


@rule(torch.matrix_exp, Tensor.matrix_exp, torch.linalg.matrix_exp)
def matrix_exponential(x: Any) -> Pair:
    """The upper right block of exp [[h, δ], [0, h + δ]] is e^(h + δ) − e^h."""
    h, d = base_of(x), delta_of(x)
    assert d is not None
    rows = torch.cat([h.expand_as(d), d], -1), torch.cat([torch.zeros_like(d), h + d], -1)
    both = torch.matrix_exp(torch.cat(rows, -2))
    return torch.matrix_exp(h), both[..., : h.shape[-1], h.shape[-1] :]


@rule(torch.linalg.solve)
def solve(A: Any, B: Any, *, left: bool = True) -> Pair:
    """X⁺ − X = A⁺⁻¹ (ΔB − ΔA X)."""
    if not left or base_of(B).ndim != base_of(A).ndim:
        raise UnsupportedModelError("linalg_solve for a vector, or from the right")
    X, moved, right = torch.linalg.solve(base_of(A), base_of(B)), delta_of(A), delta_of(B)
    if moved is not None:
        right = -(moved @ X) if right is None else right - moved @ X
    return X, torch.linalg.solve(base_of(A) if moved is None else base_of(A) + moved, right)


@rule(torch.einsum)
def einsum(equation: str, *operands: Any) -> Pair:
    found = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    return telescoped(lambda *parts: torch.einsum(equation, *parts), *found)


@rule(F.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Pair:
    base, delta = telescoped(lambda x, y, W: torch.einsum("...i,oij,...j->...o", x, W, y), input1, input2, weight)
    return base if bias is None else base + base_of(bias), added(delta, delta_of(bias), base)


@rule(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def transposed_convolution(input: Any, weight: Any, bias: Any = None, *options: Any, **named: Any) -> Pair:
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[base_of(weight).ndim - 3]
    base, delta = telescoped(lambda x, W: function(x, W, None, *options, **named), input, weight)
    channels = (1, -1, *[1] * (base.ndim - 2))
    base = base if bias is None else base + base_of(bias).view(channels)
    return base, added(delta, delta_of(bias), base, channels=True)


@rule(torch.softmax, Tensor.softmax, torch.special.softmax)
def softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Pair:
    """Δp = p expm1(Δ log p)."""
    h, d = _cast(x, dtype)
    p = torch.softmax(h, dim)
    return p, _softmax_change(h, p, d, dim, log=False)


@rule(torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax)
def log_softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Pair:
    """Δ log p = d − L, L = log1p(Σ p expm1(d)), d less its value where p is largest."""
    h, d = _cast(x, dtype)
    base = torch.log_softmax(h, dim)
    return base, _softmax_change(h, base.exp(), d, dim, log=True)


@rule(F.cross_entropy)
def cross_entropy(
    input: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Pair:
    """Δℓ = log1p(Σ_{k≠y} p_k expm1(d_k − d_y)), which keeps its digits where an example is learned."""
    h, d, target = base_of(input), delta_of(input), base_of(target)
    if d is None or target.is_floating_point() or weight is not None or label_smoothing:
        raise UnsupportedModelError("cross_entropy with weights, smoothing or labels that are not whole numbers")
    base = F.cross_entropy(h, target, ignore_index=ignore_index, reduction=reduction)
    counts = target != ignore_index
    classes = torch.where(counts, target, 0)
    h, d = (h.movedim(1, -1), d.movedim(2, -1)) if h.ndim > 1 else (h, d)
    delta = torch.where(counts, _cross_entropy_change(h, classes, d), 0)
    if reduction == "none":
        return base, delta
    total = delta.reshape(len(d), -1).sum(1)
    return base, total if reduction == "sum" else total / counts.sum()


def _cross_entropy_change(h: Tensor, y: Tensor, d: Tensor) -> Tensor:
    """For logits h […, w] and classes y […]: [c, …]."""
    kernels = kernels_for(d, h.shape[-1])
    if kernels is not None:
        rows = h.reshape(-1, h.shape[-1]), y.flatten(), d.reshape(len(d), -1, d.shape[-1])
        found: Tensor = kernels.cross_entropy_change_on_gpu(*rows)
        return found.view(len(d), *y.shape)
    moved = (d - d.gather(-1, y[..., None].expand(len(d), *y.shape, 1))).masked_fill_(h <= masked_below(h.dtype), 0)
    return _log_normalizer(torch.softmax(h, -1), moved, -1)[..., 0]


@rule(torch.logsumexp, Tensor.logsumexp)
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Pair:
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        raise UnsupportedModelError("logsumexp over several axes")
    h, d = _cast(x, None)
    axis = dim % h.ndim + 1
    moved = _less_the_largest(h, d, axis)
    at = h.argmax(dim, keepdim=True)
    first = d.gather(axis, at.expand(len(d), *at.shape))
    change = first + _log_normalizer(torch.softmax(h, dim), moved, axis)
    return torch.logsumexp(h, dim, keepdim), change if keepdim else change.squeeze(axis)


def _softmax_change(h: Tensor, p: Tensor, d: Tensor, dim: int, *, log: bool) -> Tensor:
    axis = dim % h.ndim + 1
    fits = axis == h.ndim and d.shape[1:] == h.shape
    kernels = kernels_for(d, h.shape[-1]) if fits else None
    if kernels is not None:
        return kernels.softmax_change_on_gpu(h, p, d, log=log)
    moved = _less_the_largest(h, d, axis)
    moved = moved.sub_(_log_normalizer(p, moved, axis))
    return moved if log else moved.expm1_().mul_(p)


def _cast(x: Any, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    h, d = base_of(x), delta_of(x)
    assert d is not None
    return (h, d) if dtype is None else (h.to(dtype), d.to(dtype))


def _less_the_largest(h: Tensor, d: Tensor, axis: int) -> Tensor:
    """d less its value where h is largest, which changes nothing and keeps saturated rows exact; 0 if masked."""
    at = h.argmax(axis - 1, keepdim=True)
    return (d - d.gather(axis, at.expand(len(d), *at.shape))).masked_fill_(h <= masked_below(h.dtype), 0)


def _log_normalizer(p: Tensor, moved: Tensor, axis: int) -> Tensor:
    """log1p(Σ p expm1(d)); the largest p stays in the sum, so that it never cancels. NaN where it overflows."""
    total = torch.log1p(torch.expm1(moved).mul_(p).sum(axis, keepdim=True))
    return total.masked_fill_(total.isinf(), torch.nan)


@rule(F.scaled_dot_product_attention)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(Q Kᵀ / √d + mask) V."""
    if dropout_p > 0:
        raise UnsupportedModelError("attention with dropout in training mode")
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    kernels = None if delta_of(attn_mask) is not None else _attention_kernels(query, key, value)
    if kernels is None:
        return _weights(_masked((query * scale) @ key.transpose(-2, -1), attn_mask, is_causal), attn_mask) @ value
    q, k, v = (base_of(x) for x in (query, key, value))
    scores = _masked((q * scale) @ k.transpose(-2, -1), base_of(attn_mask), is_causal)
    moved = [delta_of(x) for x in (query, key, value)]
    base = _weights(scores, attn_mask) @ v
    return base, kernels.attention_change_on_gpu((q, k, v), moved, scores, base, scale, split=splits_numbers())


def _masked(scores: Any, mask: Any, is_causal: bool) -> Any:
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if mask is None:
        return scores
    return scores + mask if base_of(mask).is_floating_point() else scores.masked_fill(~mask, -torch.inf)


def _weights(scores: Any, mask: Any) -> Any:
    """softmax, and zeros for a place whose mask allows nothing."""
    if mask is None:
        return torch.softmax(scores, -1)
    nothing = (base_of(scores) == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)


def _attention_kernels(*heads: Any) -> Any:
    """The kernels that take queries, keys and values [t, heads, rows, w] at once, where all three move."""
    shapes = [base_of(x).shape for x in heads]
    moved = [d for d in map(delta_of, heads) if d is not None]
    alike = all(len(shape) == 4 for shape in shapes) and len({(*shape[:2], shape[3]) for shape in shapes}) == 1
    if not alike or [d.shape[1:] for d in moved] != shapes:
        return None
    kernels = kernels_for(moved[0])
    return None if kernels is None or shapes[0][3] > kernels.WIDEST_HEAD else kernels


@rule(torch.linalg.vector_norm)
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """(Σ |x|^p)^(1/p), and the largest |x| where p is infinite."""
    x, dims = x if dtype is None else x.to(dtype), tuple(range(x.ndim)) if dim is None else dim
    if ord == 2:
        return x.square().sum(dims, keepdim).sqrt()
    if ord == math.inf:
        return x.abs().amax(dims, keepdim)
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if not 0 < ord < math.inf:
        raise UnsupportedModelError(f"a norm of order {ord}")
    return x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)


@rule(torch.norm, Tensor.norm)
def norm(
    x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: None = None, dtype: torch.dtype | None = None
) -> Any:
    if isinstance(p, str) and p != "fro":
        raise UnsupportedModelError(f"a norm of order {p}")
    return vector_norm(x, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@rule(torch.linalg.norm)
def vector_or_matrix_norm(
    A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Of vectors, or the Frobenius norm of matrices."""
    if ord in ("fro", None):
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    axes = A.ndim if dim is None else 1 if isinstance(dim, int) else len(dim)
    if isinstance(ord, str) or axes > 1:
        raise UnsupportedModelError(f"a matrix norm of order {ord}")
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


@rule(torch.var_mean)
def variance_and_mean(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: int | None = None
) -> tuple[Any, Any]:
    if isinstance(dim, bool):  # an older form, whose second argument is `unbiased`
        dim, unbiased = None, dim
    dims = tuple(range(x.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    count = math.prod(x.shape[i] for i in dims) - (int(unbiased) if correction is None else correction)
    mean = x.mean(dims, keepdim=True)
    return (x - mean).square().sum(dims, keepdim) / count, mean if keepdim else x.mean(dims)


@rule(torch.var, Tensor.var)
def variance(x: Any, *args: Any, **kwargs: Any) -> Any:
    return variance_and_mean(x, *args, **kwargs)[0]


@rule(torch.std_mean)
def deviation_and_mean(x: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    found, mean = variance_and_mean(x, *args, **kwargs)
    return found.sqrt(), mean


@rule(F.cosine_similarity)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    kind = torch.result_type(base_of(x1), base_of(x2))
    sizes = [vector_norm(one.to(kind), 2, dim).clamp_min(eps) for one in (x1, x2)]
    return (x1 * x2).sum(dim) / (sizes[0] * sizes[1])


@rule(torch._weight_norm)
def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """v g / ‖v‖ over all axes but one."""
    axes = [i for i in range(v.ndim) if i != dim]
    return v * (g / vector_norm(v, 2, axes, True))


rule(Tensor.__rmatmul__)(lambda x, y: matmul(y, x))
rule(torch.dot, torch.vdot, torch.mv, Tensor.dot, Tensor.vdot, Tensor.mv)(lambda x, y: telescoped(torch.matmul, x, y))
rule(torch.inner, Tensor.inner)(lambda x, y: tensordot(x, y, ([-1], [-1])) if x.ndim and y.ndim else x * y)
rule(torch.outer, Tensor.outer)(lambda x, y: telescoped(torch.outer, x, y))
rule(torch.std, Tensor.std)(lambda x, *args, **kwargs: variance(x, *args, **kwargs).sqrt())
rule(torch.baddbmm, Tensor.baddbmm)(
    lambda input, batch1, batch2, *, beta=1, alpha=1: (
        torch.mul(input, beta) + torch.mul(torch.bmm(batch1, batch2), alpha)
    )
)
