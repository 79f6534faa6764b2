"""GPU kernels for rules that would otherwise pass over memory many times, and for products on tensor cores.

Differences d [c, …] are c times as large as the activations h [...] that they belong to; h is read again for every
source. All of it is float32. How many rows there are differs from chunk to chunk, so no kernel is compiled for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from local_elasticity.engine.fast_paths.kernels import masked_below

BLOCK = 1024
"""Numbers of one program."""

MASKED = tl.constexpr(masked_below(torch.float32))

WIDEST = 1 << 20
"""The longest row that kernels take."""


@triton.jit
def _expm1(x):
    """e^x − 1, by its series where that would cancel."""
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7 * (1 + x / 8)))))))
    return tl.where(tl.abs(x) < 0.5, series, tl.exp(x) - 1)


@triton.jit
def _log1p(x):
    """log(1 + x), by 2 artanh(x / (2 + x)) where that would cancel."""
    s = x / (2 + x)
    q = s * s
    series = 2 * s * (1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q / 11)))))
    return tl.where(tl.abs(x) < 0.4, series, tl.log(1 + x))


@triton.jit
def _sigmoid(x):
    decay = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


@triton.jit
def _sigmoid_change(h, d):
    """σ(h) σ(−h − d) expm1(d), subtracted where d is large."""
    small = tl.minimum(tl.maximum(d, -1.0), 1.0)
    exact = _sigmoid(h) * _sigmoid(-h - small) * _expm1(small)
    return tl.where(tl.abs(d) < 1, exact, _sigmoid(h + d) - _sigmoid(h))


@triton.jit
def _normal_change(h, d):
    """Φ(h + d) − Φ(h): the density integrated by Gauss and Legendre where d is small, subtracted where it is not."""
    small = tl.minimum(tl.maximum(d, -1.0), 1.0)
    middle, half = h + small / 2, small / 2
    one, two = middle + 0.5384693101056831 * half, middle - 0.5384693101056831 * half
    three, four = middle + 0.9061798459386640 * half, middle - 0.9061798459386640 * half
    density = 0.5688888888888889 * tl.exp(-middle * middle / 2)
    density += 0.4786286704993665 * (tl.exp(-one * one / 2) + tl.exp(-two * two / 2))
    density += 0.2369268850561891 * (tl.exp(-three * three / 2) + tl.exp(-four * four / 2))
    exact = half * density * 0.3989422804014327
    root = 0.7071067811865476
    return tl.where(tl.abs(d) < 1, exact, (tl.erf((h + d) * root) - tl.erf(h * root)) / 2)


@triton.jit
def _relu_change(h, d):
    """max(h + d, 0) − max(h, 0)."""
    return tl.maximum(d + tl.minimum(h, 0.0), -tl.maximum(h, 0.0))


@triton.jit
def _changes(h_at, d_at, out_at, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, i = at < size, tl.program_id(1).to(tl.int64) * size + at
    h = tl.load(h_at + at, mask=inside, other=0.0)
    d = tl.load(d_at + i, mask=inside, other=0.0)
    if KIND == "relu":
        change = _relu_change(h, d)
    elif KIND == "sigmoid":
        change = _sigmoid_change(h, d)
    elif KIND == "tanh":
        change = 2 * _sigmoid_change(2 * h, 2 * d)
    elif KIND == "silu":
        change = d * _sigmoid(h + d) + h * _sigmoid_change(h, d)
    elif KIND == "gelu":
        change = d * (1 + tl.erf((h + d) * 0.7071067811865476)) / 2 + h * _normal_change(h, d)
    else:
        u = 0.7978845608028654 * (h + 0.044715 * h * h * h)
        moved = 0.7978845608028654 * (d + 0.044715 * d * (3 * h * h + 3 * h * d + d * d))
        change = d * _sigmoid(2 * (u + moved)) + h * _sigmoid_change(2 * u, 2 * moved)
    tl.store(out_at + i, change, mask=inside)


def changes_on_gpu(kind: str, h: Tensor, d: Tensor) -> Tensor:
    """f(h + d) − f(h) of an activation, elementwise."""
    if not _alike(h, d):
        h, d = h.contiguous(), d.contiguous()
    out = torch.empty_like(d)
    with _device(d):
        _changes[(triton.cdiv(h.numel(), BLOCK), len(d))](h, d, out, h.numel(), kind, BLOCK)
    return out


def _alike(h: Tensor, d: Tensor) -> bool:
    """Whether both fill their memory in the same order, whatever it is."""
    if d.stride()[1:] != h.stride() or (len(d) > 1 and d.stride(0) != h.numel()):
        return False
    return h.permute(sorted(range(h.ndim), key=lambda i: -h.stride(i))).is_contiguous()


def _tile(width: int) -> tuple[int, int]:
    """Columns that hold a row of such a width, and how many rows a program takes."""
    block = triton.next_power_of_2(width)
    return block, max(1, BLOCK // block)


def _device(x: Tensor) -> torch.cuda.device:
    return torch.cuda.device(x.device)


@triton.jit(do_not_specialize=["rows"])
def _norms(
    x_at,
    root_at,
    d_at,
    g_at,
    dg_at,
    db_at,
    out_at,
    rows,
    width,
    eps,
    CENTRED: tl.constexpr,
    SCALES: tl.constexpr,
    G_MOVES: tl.constexpr,
    B_MOVES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    source = tl.program_id(1).to(tl.int64)
    row, i = source * rows + at, tl.arange(0, BLOCK)[None]
    there = at < rows
    inside = (i < width) & there
    x = tl.load(x_at + at * width + i, mask=inside, other=0.0)
    d = tl.load(d_at + row * width + i, mask=inside, other=0.0)
    root = tl.load(root_at + at, mask=there, other=1.0)
    if CENTRED:
        d = tl.where(inside, d - tl.sum(d, 1)[:, None] / width, 0.0)
    moved = tl.sum(d * (2 * x + d), 1)[:, None] / width
    after = tl.sqrt(tl.maximum(root * root + moved, eps))
    change = d / after - x * (moved / (root * after * (root + after)))
    out = change
    if SCALES:
        out = change * tl.load(g_at + i, mask=inside, other=0.0)
    if G_MOVES:
        out += tl.load(dg_at + source * width + i, mask=inside, other=0.0) * (x / root + change)
    if B_MOVES:
        out += tl.load(db_at + source * width + i, mask=inside, other=0.0)
    tl.store(out_at + row * width + i, out, mask=inside)


def norm_change_on_gpu(
    x: Tensor,
    root: Tensor,
    d: Tensor,
    scale: Tensor | None,
    scaled: Tensor | None,
    shifted: Tensor | None,
    eps: float,
    *,
    centred: bool,
) -> Tensor:
    """γ Δx̂ + Δγ (x̂ + Δx̂) + Δβ of a norm over the last axis: x [..., w] with the mean taken off, root [...] its size."""
    width, d = x.shape[-1], d.contiguous()
    rows, out = x.numel() // width, torch.empty_like(d)
    parts = [None if one is None else one.contiguous() for one in (scale, scaled, shifted)]
    given = [d if one is None else one for one in parts]
    flags = [one is not None for one in parts]
    block, at_once = _tile(width)
    with _device(d):
        _norms[(triton.cdiv(rows, at_once), len(d))](
            x.contiguous(), root.contiguous(), d, *given, out, rows, width, eps, centred, *flags, at_once, block
        )
    return out


@triton.jit(do_not_specialize=["rows", "total"])
def _softmaxes(
    h_at, p_at, first_at, d_at, out_at, rows, width, total, LOG: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.arange(0, BLOCK)[None, :]
    inside = (i < width) & (row < total)
    at = row % rows
    h = tl.load(h_at + at * width + i, mask=inside, other=-float("inf"))
    p = tl.load(p_at + at * width + i, mask=inside, other=0.0)
    first = tl.load(first_at + at, mask=row < total, other=0)
    d = tl.load(d_at + row * width + i, mask=inside, other=0.0)
    d -= tl.load(d_at + row * width + first, mask=row < total, other=0.0)
    d = tl.where(h <= MASKED, 0.0, d)
    grown = tl.sum(p * _expm1(d), 1)[:, None]
    normalizer = _log1p(grown)
    normalizer = tl.where(grown == float("inf"), float("nan"), normalizer)
    change = d - normalizer if LOG else p * _expm1(d - normalizer)
    tl.store(out_at + row * width + i, change, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _wide_softmaxes(h_at, p_at, first_at, d_at, out_at, rows, width, LOG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = row % rows
    reference = tl.load(d_at + row * width + tl.load(first_at + at))
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < width
        h = tl.load(h_at + at * width + i, mask=inside, other=-float("inf"))
        p = tl.load(p_at + at * width + i, mask=inside, other=0.0)
        d = tl.load(d_at + row * width + i, mask=inside, other=0.0) - reference
        total += p * _expm1(tl.where(h <= MASKED, 0.0, d))
    grown = tl.sum(total, 0)
    normalizer = tl.where(grown == float("inf"), float("nan"), _log1p(grown))
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < width
        h = tl.load(h_at + at * width + i, mask=inside, other=-float("inf"))
        d = tl.load(d_at + row * width + i, mask=inside, other=0.0) - reference
        d = tl.where(h <= MASKED, 0.0, d) - normalizer
        change = d if LOG else tl.load(p_at + at * width + i, mask=inside, other=0.0) * _expm1(d)
        tl.store(out_at + row * width + i, change, mask=inside)


def softmax_change_on_gpu(h: Tensor, p: Tensor, d: Tensor, *, log: bool) -> Tensor:
    """The change of a (log-)softmax over the last axis; h [..., w], its softmax p, and d [c, ..., w]."""
    width, d = h.shape[-1], d.contiguous()
    rows, total = h.numel() // width, d.numel() // width
    block, out = triton.next_power_of_2(width), torch.empty_like(d)
    at_once = max(1, 2048 // block)
    with _device(d):
        if block > 2048:
            given = h.contiguous(), p.contiguous(), h.argmax(-1).contiguous(), d, out
            _wide_softmaxes[(total,)](*given, rows, width, log, 2048, num_warps=8)
            return out
        _softmaxes[(triton.cdiv(total, at_once),)](
            h.contiguous(), p.contiguous(), h.argmax(-1).contiguous(), d, out, rows, width, total, log, at_once, block
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _cross_entropies(h_at, lse_at, y_at, d_at, out_at, rows, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = row % rows
    lse, y = tl.load(lse_at + at), tl.load(y_at + at)
    reference = tl.load(d_at + row * width + y)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        h = tl.load(h_at + at * width + i, mask=i < width, other=-float("inf"))
        d = tl.load(d_at + row * width + i, mask=i < width, other=0.0) - reference
        total += tl.where(h <= MASKED, 0.0, tl.exp(h - lse) * _expm1(d))
    grown = tl.sum(total, 0)
    tl.store(out_at + row, tl.where(grown == float("inf"), float("nan"), _log1p(grown)))


def cross_entropy_change_on_gpu(h: Tensor, y: Tensor, d: Tensor) -> Tensor:
    """log1p(Σ_{k≠y} p_k expm1(d_k − d_y)) for logits h [rows, w], classes y [rows] and d [c, rows, w]: [c, rows]."""
    (rows, width), h, d = h.shape, h.contiguous(), d.contiguous()
    out = torch.empty(d.shape[:2], device=d.device)
    block = min(2048, triton.next_power_of_2(width))
    with _device(d):
        _cross_entropies[(out.numel(),)](h, h.logsumexp(-1), y.contiguous(), d, out, rows, width, block, num_warps=8)
    return out


@triton.jit
def _product(a, b, total, SPLIT: tl.constexpr):
    """total + a b on tensor cores: right to 1e-6, or by two numbers in bfloat16 for each one to 2e-5."""
    if SPLIT:
        a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
        a_low, b_low = (a - a_high.to(tl.float32)).to(tl.bfloat16), (b - b_high.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(a_high, b_high, total)
        total = tl.dot(a_low, b_high, total)
        total = tl.dot(a_high, b_low, total)
    else:
        total = tl.dot(a, b, total, input_precision="tf32x3")
    return total


@triton.jit(do_not_specialize=["t"])
def _attentions(
    q_at, k_at, v_at, dq_at, dk_at, dv_at, h_at, o_at, first_at, lse_at, out_at,
    scale, t, heads, queries, keys, width, q_t, q_h, q_r, k_t, k_h, k_r, v_t, v_h, v_r,
    dq_c, dq_t, dq_h, dq_r, dk_c, dk_t, dk_h, dk_r, dv_c, dv_t, dv_h, dv_r,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """[Σ p expm1(d) v⁺ − g (o + Σ p Δv)] / (1 + g) + Σ p Δv, g = Σ p expm1(d), in one pass over the keys: d are the
    changes of the scores less that of the largest, and o = Σ p v the output before."""
    program, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, pair = program % heads, program // heads
    target, source = pair % t, pair // t
    q_at += target * q_t + head * q_h
    k_at += target * k_t + head * k_h
    v_at += target * v_t + head * v_h
    dq_at += source * dq_c + target * dq_t + head * dq_h
    dk_at += source * dk_c + target * dk_t + head * dk_h
    dv_at += source * dv_c + target * dv_t + head * dv_h
    of_head = (target * heads + head) * queries
    i, e = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    known = (i[:, None] < queries) & (e[None] < width)
    q = tl.load(q_at + i[:, None] * q_r + e[None], mask=known, other=0.0) * scale
    dq = tl.load(dq_at + i[:, None] * dq_r + e[None], mask=known, other=0.0) * scale
    first = tl.load(first_at + of_head + i, mask=i < queries, other=0)
    lse = tl.load(lse_at + of_head + i, mask=i < queries, other=0.0)
    largest = tl.load(k_at + first[:, None] * k_r + e[None], mask=known, other=0.0)
    moves = tl.load(dk_at + first[:, None] * dk_r + e[None], mask=known, other=0.0)
    reference = tl.sum(dq * (largest + moves) + q * moves, 1)
    grown = tl.zeros((ROWS,), tl.float32)
    by_scores, by_values = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, keys, KEYS):
        j = start + tl.arange(0, KEYS)
        there = (j[:, None] < keys) & (e[None] < width)
        k = tl.load(k_at + j[:, None] * k_r + e[None], mask=there, other=0.0)
        dk = tl.load(dk_at + j[:, None] * dk_r + e[None], mask=there, other=0.0)
        d = _product(dq, tl.trans(k + dk), tl.zeros((ROWS, KEYS), tl.float32), SPLIT)
        d = _product(q, tl.trans(dk), d, SPLIT)
        inside = (i[:, None] < queries) & (j[None] < keys)
        h = tl.load(h_at + (of_head + i[:, None]) * keys + j[None], mask=inside, other=-float("inf"))
        p = tl.where(h == -float("inf"), 0.0, tl.exp(h - lse[:, None]))
        moved = p * _expm1(tl.where(h <= MASKED, 0.0, d - reference[:, None]))
        grown += tl.sum(moved, 1)
        v = tl.load(v_at + j[:, None] * v_r + e[None], mask=there, other=0.0)
        dv = tl.load(dv_at + j[:, None] * dv_r + e[None], mask=there, other=0.0)
        by_scores = _product(moved, v + dv, by_scores, SPLIT)
        by_values = _product(p, dv, by_values, SPLIT)
    o = tl.load(o_at + (of_head + i[:, None]) * width + e[None], mask=known, other=0.0)
    grown = tl.where(grown == float("inf"), float("nan"), grown)[:, None]
    change = (by_scores - grown * (o + by_values)) / (1 + grown) + by_values
    tl.store(out_at + ((pair * queries + i[:, None]) * heads + head) * width + e[None], change, mask=known)


WIDEST_HEAD = 128
"""The largest size of a head whose keys and values fit into shared memory together."""


def attention_change_on_gpu(
    heads: tuple[Tensor, Tensor, Tensor], moved: Sequence[Tensor], h: Tensor, o: Tensor, scale: float, *, split: bool
) -> Tensor:
    """P⁺ V⁺ − P V of attention: queries, keys and values [t, heads, rows, w], their differences [c, …], the scores h
    before, masks included, and the output o before. Δ[c, t, heads, rows, w] has the heads of a place side by side in
    memory. Products are by parts where they are `split`."""
    (t, many, queries, width), keys, c = heads[0].shape, h.shape[-1], len(moved[0])
    bases, deltas = ([x if x.stride(-1) == 1 else x.contiguous() for x in xs] for xs in (heads, moved))
    strides = [step for x in (*bases, *deltas) for step in x.stride()[:-1]]
    h, o = h.contiguous(), o.contiguous()
    out = torch.empty(c, t, queries, many, width, device=h.device)
    sizes = t, many, queries, keys, width
    rows, block = (64 if size > 32 else 32 for size in (queries, keys))
    with _device(h):
        _attentions[(c * t * many, triton.cdiv(queries, rows))](
            *bases, *deltas, h, o, h.argmax(-1), h.logsumexp(-1), out, scale, *sizes, *strides,
            rows, block, max(16, triton.next_power_of_2(width)), split, num_warps=4, num_stages=1,
        )  # fmt: skip
    return out.transpose(2, 3)


@triton.jit
def _products(
    h_at, d_at, g_at, dg_at, out_at, size, inner, count, dg_inner, dg_count, BLOCK: tl.constexpr
):  # fmt: skip
    at, source = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    inside, i = at < size, source * size + at
    h = tl.load(h_at + at, mask=inside, other=0.0)
    d = tl.load(d_at + i, mask=inside, other=0.0)
    g = tl.load(g_at + at // inner % count, mask=inside, other=0.0)
    moved = tl.load(dg_at + source * dg_count + at // dg_inner % dg_count, mask=inside, other=0.0)
    tl.store(out_at + i, d * g + (h + d) * moved, mask=inside)


def product_change_on_gpu(h: Tensor, d: Tensor, g: Tensor, dg: Tensor) -> Tensor | None:
    """(h + d)(g + dg) − h g, where g and dg may be the same along some of the axes of h; None where that takes more
    than one pass over memory."""
    places = _repeats(g.shape, h), _repeats(dg.shape[1:], h)
    if places[0] is None or places[1] is None or not _alike(h, d):
        return None
    out = torch.empty_like(d)
    with _device(d):
        _products[(triton.cdiv(h.numel(), BLOCK), len(d))](
            h, d, g.contiguous(), dg.contiguous(), out, h.numel(), *places[0], *places[1], BLOCK
        )
    return out


def _repeats(shape: Sequence[int], h: Tensor) -> tuple[int, int] | None:
    """How often each number of a tensor of some shape follows itself where it is spread over h, and after how many
    numbers they begin again; None if they come in another order."""
    shape = (*[1] * (h.ndim - len(shape)), *shape)
    own = [axis for axis, (size, full) in enumerate(zip(shape, h.shape, strict=True)) if size == full and full > 1]
    if not own:
        return 1, 1
    first, last = own[0], own[-1]
    together = shape[first : last + 1] == tuple(h.shape[first : last + 1]) and h.is_contiguous()
    return (h.stride(last), math.prod(shape)) if together or first == last else None


@triton.jit
def _scales(
    h_at, d_at, mean_at, inverse_at, g_at, dg_at, db_at, plus_at, y_at, out_at, size, inner, channels,
    G_MOVES: tl.constexpr, B_MOVES: tl.constexpr, PLUS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    start, source = tl.program_id(0).to(tl.int64) * BLOCK, tl.program_id(1).to(tl.int64)
    at = start + tl.arange(0, BLOCK)
    inside, i = at < size, source * size + at
    channel = (((start % (inner * channels)).to(tl.int32) + tl.arange(0, BLOCK)) // inner) % channels
    d = tl.load(d_at + i, mask=inside, other=0.0)
    inverse = tl.load(inverse_at + channel, mask=inside, other=0.0)
    change = d * inverse * tl.load(g_at + channel, mask=inside, other=0.0)
    if G_MOVES:
        h = tl.load(h_at + at, mask=inside, other=0.0)
        mean = tl.load(mean_at + channel, mask=inside, other=0.0)
        change += tl.load(dg_at + source * channels + channel, mask=inside, other=0.0) * (h - mean + d) * inverse
    if B_MOVES:
        change += tl.load(db_at + source * channels + channel, mask=inside, other=0.0)
    if PLUS:
        change += tl.load(plus_at + i, mask=inside, other=0.0)
    if RELU:
        y = tl.load(y_at + at, mask=inside, other=0.0)
        change = _relu_change(y, change)
    tl.store(out_at + i, change, mask=inside)


def scale_change_on_gpu(
    h: Tensor,
    d: Tensor,
    mean: Tensor,
    inverse: Tensor,
    scale: Tensor,
    scaled: Tensor | None,
    shifted: Tensor | None,
    *,
    plus: Tensor | None = None,
    relu_of: Tensor | None = None,
) -> Tensor:
    """(γ + Δγ) δ/σ + Δγ x̂ + Δβ of a norm with frozen statistics, channels on the second axis of h; the sum with
    another difference, and what a ReLU of these values makes of it."""
    if not _alike(h, d):
        h, d = h.contiguous(), d.contiguous()
    out = torch.empty_like(d)
    moved = [d if one is None else one.contiguous() for one in (scaled, shifted)]
    more = [d if plus is None else _laid_out_as(d, plus), h if relu_of is None else _laid_out_as(h, relu_of)]
    flags = [one is not None for one in (scaled, shifted, plus, relu_of)]
    with _device(d):
        _scales[(triton.cdiv(h.numel(), BLOCK), len(d))](
            h, d, mean, inverse, scale, *moved, *more, out, h.numel(), h.stride(1), h.shape[1], *flags, BLOCK
        )
    return out


def _laid_out_as(like: Tensor, x: Tensor) -> Tensor:
    """The same numbers with the strides of another tensor."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


@triton.jit(do_not_specialize=["t", "height", "width", "rows", "columns", "sy", "py", "px", "gy"])
def _depthwise(
    h_at, d_at, after_at, dw_at, out_at, t, height, width, channels, rows, columns, sy, py, px, gy,
    D_MOVES: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SX: tl.constexpr, GX: tl.constexpr,
    PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """PLACES neighbours on a line at a time. A column of the image is loaded once for all of them that see it."""
    line, first, ch = tl.program_id(0).to(tl.int64), tl.program_id(1) * PLACES, tl.program_id(2)
    image, y = line // rows, line % rows
    source = image // t
    i = ch * BLOCK + tl.arange(0, BLOCK)
    fits = i < channels
    zero = tl.zeros((BLOCK,), tl.float32)
    totals = (zero,) * PLACES
    h_at += (image % t) * height * width * channels + i
    d_at += image * height * width * channels + i
    for ky in range(KY):
        at_y = y * sy + ky * gy - py
        seen = fits & (at_y >= 0) & (at_y < height)
        moved, after = (), ()
        for k in tl.static_range(KX):
            at = (source * KY * KX + ky * KX + k) * channels + i
            moved += (tl.load(dw_at + at, mask=fits, other=0.0),)
            if D_MOVES:
                after += (tl.load(after_at + at, mask=fits, other=0.0),)
        for j in tl.static_range((PLACES - 1) * SX + (KX - 1) * GX + 1):
            at_x = first * SX + j - px
            inside = seen & (at_x >= 0) & (at_x < width)
            place = (at_y * width + at_x) * channels
            h = tl.load(h_at + place, mask=inside, other=0.0)
            if D_MOVES:
                d = tl.load(d_at + place, mask=inside, other=0.0)
            for p in tl.static_range(PLACES):
                if j - p * SX >= 0 and (j - p * SX) % GX == 0 and (j - p * SX) // GX < KX:
                    total = totals[p] + moved[(j - p * SX) // GX] * h
                    if D_MOVES:
                        total += after[(j - p * SX) // GX] * d
                    totals = totals[:p] + (total,) + totals[p + 1 :]  # noqa: RUF005 (a kernel knows no stars)
    for p in tl.static_range(PLACES):
        x = first + p
        tl.store(out_at + (line * columns + x) * channels + i, totals[p], mask=fits & (x < columns))


def depthwise_change_on_gpu(
    h: Tensor, d: Tensor | None, W: Tensor, moved: Tensor, places: tuple[int, int],
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """W⁺ δ + ΔW h of a convolution with one filter for each channel: h [t, C, …], d [c, t, C, …], ΔW [c, C, 1, ky, kx];
    channels last in memory."""
    c, (t, channels, height, width) = len(moved), h.shape
    last = h.permute(0, 2, 3, 1).contiguous()
    moves = last if d is None else d.permute(0, 1, 3, 4, 2).contiguous()
    changes = moved[:, :, 0].permute(0, 2, 3, 1).contiguous()
    after = changes + W[:, 0].permute(1, 2, 0)
    out = torch.empty(c, t, *places, channels, device=h.device)
    block, at_once = min(64, triton.next_power_of_2(channels)), 8
    grid = c * t * places[0], triton.cdiv(places[1], at_once), triton.cdiv(channels, block)
    with _device(h):
        _depthwise[grid](
            last, moves, after, changes, out, t, height, width, channels, *places, stride[0], *padding, dilation[0],
            d is not None, *W.shape[2:], stride[1], dilation[1], at_once, block, num_warps=2,
        )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


@triton.jit(do_not_specialize=["of_h"])
def _splits(
    x_at, h_at, out_at, of_h, width, stride, at,
    PLUS: tl.constexpr, LEFT: tl.constexpr, TWO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    x = tl.load(x_at + row * width + i, mask=inside, other=0.0)
    if PLUS:
        x += tl.load(h_at + (row % of_h) * width + i, mask=inside, other=0.0)
    _put(out_at + row * stride + at + i, x, width, inside, LEFT, TWO)


@triton.jit
def _put(at, x, width, inside, LEFT: tl.constexpr, TWO: tl.constexpr):
    high = x.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(at, high, mask=inside)
    tl.store(at + width, low if LEFT else high, mask=inside)
    if not TWO:
        tl.store(at + 2 * width, high if LEFT else low, mask=inside)


def _columns(width: int) -> tuple[int, int]:
    """Columns of a program, so that few unused ones are computed, and its rows."""
    block = min((64, 128, 256, 512, 1024), key=lambda block: (triton.cdiv(width, block) * block, -block))
    return block, BLOCK // block


def split_into(x: Tensor, out: Tensor, at: int, *, left: bool, plus: Tensor | None = None, blocks: int = 3) -> None:
    """x [rows, w], or x + plus, as bfloat16 numbers high + low in three blocks of columns of `out` from `at` on: high,
    low, high on the left of a product; high, high, low on its right. Their product is right to 2e-5. Two `blocks`, high
    and low, suffice on the left where the right side has no low part."""
    rows, width = x.shape
    x, plus = x.contiguous(), None if plus is None else plus.contiguous()
    given, of_h = (x, 1) if plus is None else (plus, len(plus))
    block, flags = min(BLOCK, triton.next_power_of_2(width)), (plus is not None, left, blocks == 2)
    with _device(x):
        _splits[(rows, triton.cdiv(width, block))](x, given, out, of_h, width, out.stride(0), at, *flags, block)


@triton.jit(do_not_specialize=["t", "total"])
def _windows(
    x_at, out_at, t, channels, height, width, rows, columns, of_c, of_t, of_ch, of_y, of_x, sy, sx, py, px, gy, gx,
    KX, total, size, stride, at, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None]
    image, y, x = row // (rows * columns), (row // columns) % rows, row % columns
    tap, ch = i // channels, i % channels
    at_y, at_x = y * sy + (tap // KX) * gy - py, x * sx + (tap % KX) * gx - px
    fits = (i < size) & (row < total)
    inside = fits & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
    place = (image // t) * of_c + (image % t) * of_t + ch * of_ch + at_y * of_y + at_x * of_x
    _put(out_at + row * stride + at + i, tl.load(x_at + place, mask=inside, other=0.0), size, fits, True, False)


def windows_into(
    x: Tensor, out: Tensor, at: int, kernel: tuple[int, ...], places: tuple[int, ...],
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
) -> None:  # fmt: skip
    """As `split_into` for the patches of images [c, t, C, …], channels last, laid out while they are split."""
    c, t, channels, height, width = x.shape
    size = channels * kernel[0] * kernel[1]
    block, at_once = _columns(size)
    rows = c * t * places[0] * places[1]
    with _device(x):
        _windows[(triton.cdiv(rows, at_once), triton.cdiv(size, block))](
            x, out, t, channels, height, width, *places, *x.stride(), *stride, *padding, *dilation,
            kernel[1], rows, size, out.stride(0), at, at_once, block,
        )  # fmt: skip
