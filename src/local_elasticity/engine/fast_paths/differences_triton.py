"""GPU kernels for rules that would otherwise pass over memory many times, and for products on tensor cores.

Differences d [c, …] are c times as large as the activations h [...] that they belong to; h is read again for every
source. All of it is float32. How many rows there are differs from chunk to chunk, so no kernel is compiled for that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers of one program."""

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


@triton.jit(do_not_specialize=["size", "total"])
def _changes(h_at, d_at, out_at, size, total, KIND: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    h = tl.load(h_at + i % size, mask=inside, other=0.0)
    d = tl.load(d_at + i, mask=inside, other=0.0)
    if KIND == "relu":
        change = tl.maximum(d + tl.minimum(h, 0.0), -tl.maximum(h, 0.0))
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
        _changes[(triton.cdiv(d.numel(), BLOCK),)](h, d, out, h.numel(), d.numel(), kind, BLOCK)
    return out


def _alike(h: Tensor, d: Tensor) -> bool:
    """Whether both fill their memory in the same order, whatever it is."""
    if d.stride()[1:] != h.stride() or (len(d) > 1 and d.stride(0) != h.numel()):
        return False
    return h.permute(sorted(range(h.ndim), key=lambda i: -h.stride(i))).is_contiguous()


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
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    source, at = row // rows, row % rows
    i = tl.arange(0, BLOCK)
    inside = i < width
    x = tl.load(x_at + at * width + i, mask=inside, other=0.0)
    d = tl.load(d_at + row * width + i, mask=inside, other=0.0)
    root = tl.load(root_at + at)
    if CENTRED:
        d = tl.where(inside, d - tl.sum(d, 0) / width, 0.0)
    moved = tl.sum(d * (2 * x + d), 0) / width
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
    with _device(d):
        _norms[(d.numel() // width,)](
            x.contiguous(),
            root.contiguous(),
            d,
            *given,
            out,
            rows,
            width,
            eps,
            centred,
            *flags,
            triton.next_power_of_2(width),
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
    d = tl.where(h == -float("inf"), 0.0, d)
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
        total += p * _expm1(tl.where(h == -float("inf"), 0.0, d))
    grown = tl.sum(total, 0)
    normalizer = tl.where(grown == float("inf"), float("nan"), _log1p(grown))
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < width
        h = tl.load(h_at + at * width + i, mask=inside, other=-float("inf"))
        d = tl.load(d_at + row * width + i, mask=inside, other=0.0) - reference
        d = tl.where(h == -float("inf"), 0.0, d) - normalizer
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
            h.contiguous(),
            p.contiguous(),
            h.argmax(-1).contiguous(),
            d,
            out,
            rows,
            width,
            total,
            log,
            at_once,
            block,
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
        total += tl.where(h == -float("inf"), 0.0, tl.exp(h - lse) * _expm1(d))
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
def _scores(q, dq, k_at, dk_at, of_k, of_dk, h_at, lse, i, e, j, queries, keys, width):
    """The changes of the scores of some queries with some keys, and their probabilities before; 0 where masked."""
    known = (j[:, None] < keys) & (e[None] < width)
    k = tl.load(k_at + j[:, None] * of_k + e[None], mask=known, other=0.0)
    dk = tl.load(dk_at + j[:, None] * of_dk + e[None], mask=known, other=0.0)
    d = tl.dot(dq, tl.trans(k + dk), input_precision="tf32x3")
    d = tl.dot(q, tl.trans(dk), d, input_precision="tf32x3")
    inside = (i[:, None] < queries) & (j[None] < keys)
    h = tl.load(h_at + i[:, None] * keys + j[None], mask=inside, other=-float("inf"))
    masked = h == -float("inf")
    return d, tl.where(masked, 0.0, tl.exp(h - lse[:, None])), masked


@triton.jit(do_not_specialize=["t"])
def _attentions(
    q_at, k_at, v_at, dq_at, dk_at, dv_at, h_at, first_at, lse_at, out_at, scale, t, heads, queries, keys, width,
    q_t, q_h, q_r, k_t, k_h, k_r, v_t, v_h, v_r,
    dq_c, dq_t, dq_h, dq_r, dk_c, dk_t, dk_h, dk_r, dv_c, dv_t, dv_h, dv_r,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, pair = program % heads, program // heads
    target, source = pair % t, pair // t
    q_at += target * q_t + head * q_h
    k_at += target * k_t + head * k_h
    v_at += target * v_t + head * v_h
    dq_at += source * dq_c + target * dq_t + head * dq_h
    dk_at += source * dk_c + target * dk_t + head * dk_h
    dv_at += source * dv_c + target * dv_t + head * dv_h
    h_at += (target * heads + head) * queries * keys
    i, e = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    row = (target * heads + head) * queries + i
    known = (i[:, None] < queries) & (e[None] < width)
    q = tl.load(q_at + i[:, None] * q_r + e[None], mask=known, other=0.0) * scale
    dq = tl.load(dq_at + i[:, None] * dq_r + e[None], mask=known, other=0.0) * scale
    first = tl.load(first_at + row, mask=i < queries, other=0)
    lse = tl.load(lse_at + row, mask=i < queries, other=0.0)
    k = tl.load(k_at + first[:, None] * k_r + e[None], mask=known, other=0.0)
    dk = tl.load(dk_at + first[:, None] * dk_r + e[None], mask=known, other=0.0)
    reference = tl.sum(dq * (k + dk) + q * dk, 1)
    grown = tl.zeros((ROWS,), tl.float32)
    for start in range(0, keys, KEYS):
        j = start + tl.arange(0, KEYS)
        d, p, masked = _scores(q, dq, k_at, dk_at, k_r, dk_r, h_at, lse, i, e, j, queries, keys, width)
        grown += tl.sum(p * _expm1(tl.where(masked, 0.0, d - reference[:, None])), 1)
    normalizer = tl.where(grown == float("inf"), float("nan"), _log1p(grown))
    reference += normalizer
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, keys, KEYS):
        j = start + tl.arange(0, KEYS)
        d, p, masked = _scores(q, dq, k_at, dk_at, k_r, dk_r, h_at, lse, i, e, j, queries, keys, width)
        change = p * _expm1(tl.where(masked, 0.0, d - reference[:, None]))
        known = (j[:, None] < keys) & (e[None] < width)
        v = tl.load(v_at + j[:, None] * v_r + e[None], mask=known, other=0.0)
        dv = tl.load(dv_at + j[:, None] * dv_r + e[None], mask=known, other=0.0)
        total = tl.dot(change, v + dv, total, input_precision="tf32x3")
        total = tl.dot(p, dv, total, input_precision="tf32x3")
    put = ((pair * queries + i[:, None]) * heads + head) * width + e[None]
    tl.store(out_at + put, total, mask=(i[:, None] < queries) & (e[None] < width))


WIDEST_HEAD = 128
"""Numbers of a head up to which its keys and values fit beside each other."""


def attention_change_on_gpu(
    heads: tuple[Tensor, Tensor, Tensor], moved: tuple[Tensor, Tensor, Tensor], h: Tensor, scale: float
) -> Tensor:
    """ΔP V⁺ + P ΔV of attention: queries, keys and values [t, heads, rows, w], their differences [c, …] and the scores
    h before, masks included. Δ[c, t, heads, rows, w] has the heads of a place side by side in memory."""
    (t, many, queries, width), keys, c = heads[0].shape, h.shape[-1], len(moved[0])
    bases, deltas = ([x if x.stride(-1) == 1 else x.contiguous() for x in xs] for xs in (heads, moved))
    strides = [step for x in (*bases, *deltas) for step in x.stride()[:-1]]
    h = h.contiguous()
    out = torch.empty(c, t, queries, many, width, device=h.device)
    sizes = t, many, queries, keys, width
    blocks = 64 if queries > 32 else 32, 64 if keys > 32 else 32, max(16, triton.next_power_of_2(width))
    with _device(h):
        _attentions[(c * t * many, triton.cdiv(queries, blocks[0]))](
            *bases, *deltas, h, h.argmax(-1), h.logsumexp(-1), out, scale, *sizes, *strides, *blocks,
            num_warps=4, num_stages=1,
        )  # fmt: skip
    return out.transpose(2, 3)


@triton.jit(do_not_specialize=["size", "total"])
def _scales(
    h_at, d_at, mean_at, inverse_at, g_at, dg_at, db_at, out_at, size, total, inner, channels,
    G_MOVES: tl.constexpr, B_MOVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    source, at = i // size, i % size
    channel = (at // inner) % channels
    d = tl.load(d_at + i, mask=inside, other=0.0)
    inverse = tl.load(inverse_at + channel, mask=inside, other=0.0)
    change = d * inverse * tl.load(g_at + channel, mask=inside, other=0.0)
    if G_MOVES:
        h = tl.load(h_at + at, mask=inside, other=0.0)
        mean = tl.load(mean_at + channel, mask=inside, other=0.0)
        change += tl.load(dg_at + source * channels + channel, mask=inside, other=0.0) * (h - mean + d) * inverse
    if B_MOVES:
        change += tl.load(db_at + source * channels + channel, mask=inside, other=0.0)
    tl.store(out_at + i, change, mask=inside)


def scale_change_on_gpu(
    h: Tensor, d: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, scaled: Tensor | None, shifted: Tensor | None
) -> Tensor:
    """(γ + Δγ) δ/σ + Δγ x̂ + Δβ of a norm with frozen statistics, channels on the second axis of h."""
    if not _alike(h, d):
        h, d = h.contiguous(), d.contiguous()
    out = torch.empty_like(d)
    moved = [d if one is None else one.contiguous() for one in (scaled, shifted)]
    flags = scaled is not None, shifted is not None
    with _device(d):
        _scales[(triton.cdiv(d.numel(), BLOCK),)](
            h, d, mean, inverse, scale, *moved, out, h.numel(), d.numel(), h.stride(1), h.shape[1], *flags, BLOCK
        )
    return out


@triton.jit(do_not_specialize=["t"])
def _depthwise(
    h_at, d_at, w_at, dw_at, out_at, t, height, width, channels, rows, columns, sy, sx, py, px, gy, gx,
    D_MOVES: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line, block, ch = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    image, y = line // rows, line % rows
    source = image // t
    x = block * PLACES + tl.arange(0, PLACES)
    i = ch * BLOCK + tl.arange(0, BLOCK)
    fits = i < channels
    total = tl.zeros((PLACES, BLOCK), tl.float32)
    for ky in range(KY):
        at_y = y * sy + ky * gy - py + 0 * x
        for kx in range(KX):
            at_x = x * sx + kx * gx - px
            inside = ((at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width) & (x < columns))[:, None] & fits[
                None
            ]
            tap = (ky * KX + kx) * channels + i
            moved = tl.load(dw_at + source * KY * KX * channels + tap, mask=fits, other=0.0)[None]
            place = (at_y * width + at_x)[:, None] * channels + i[None]
            total += moved * tl.load(h_at + (image % t) * height * width * channels + place, mask=inside, other=0.0)
            if D_MOVES:
                after = moved + tl.load(w_at + tap, mask=fits, other=0.0)[None]
                total += after * tl.load(d_at + image * height * width * channels + place, mask=inside, other=0.0)
    put = (line * columns + x)[:, None] * channels + i[None]
    tl.store(out_at + put, total, mask=(x < columns)[:, None] & fits[None])


def depthwise_change_on_gpu(
    h: Tensor, d: Tensor | None, W: Tensor, moved: Tensor, places: tuple[int, int],
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """W⁺ δ + ΔW h of a convolution with one filter for each channel: h [t, C, …], d [c, t, C, …], ΔW [c, C, 1, ky, kx];
    channels last in memory."""
    c, (t, channels, height, width) = len(moved), h.shape
    last = h.permute(0, 2, 3, 1).contiguous()
    moves = last if d is None else d.permute(0, 1, 3, 4, 2).contiguous()
    filters, changes = W[:, 0].permute(1, 2, 0).contiguous(), moved[:, :, 0].permute(0, 2, 3, 1).contiguous()
    out = torch.empty(c, t, *places, channels, device=h.device)
    block, at_once = min(64, triton.next_power_of_2(channels)), 8
    grid = c * t * places[0], triton.cdiv(places[1], at_once), triton.cdiv(channels, block)
    with _device(h):
        _depthwise[grid](
            last, moves, filters, changes, out, t, height, width, channels, *places, *stride, *padding, *dilation,
            d is not None, *W.shape[2:], at_once, block, num_warps=2,
        )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


@triton.jit(do_not_specialize=["of_h"])
def _splits(
    x_at, h_at, out_at, of_h, width, stride, at,
    PLUS: tl.constexpr, LEFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    x = tl.load(x_at + row * width + i, mask=inside, other=0.0)
    if PLUS:
        x += tl.load(h_at + (row % of_h) * width + i, mask=inside, other=0.0)
    _put(out_at + row * stride + at + i, x, width, inside, LEFT)


@triton.jit
def _put(at, x, width, inside, LEFT: tl.constexpr):
    high = x.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(at, high, mask=inside)
    tl.store(at + width, low if LEFT else high, mask=inside)
    tl.store(at + 2 * width, high if LEFT else low, mask=inside)


def split_into(x: Tensor, out: Tensor, at: int, *, left: bool, plus: Tensor | None = None) -> None:
    """x [rows, w], or x + plus, as bfloat16 numbers high + low in three blocks of columns of `out` from `at` on: high,
    low, high on the left of a product; high, high, low on its right. Their product is right to 2e-5."""
    rows, width = x.shape
    x, plus = x.contiguous(), None if plus is None else plus.contiguous()
    given, of_h = (x, 1) if plus is None else (plus, len(plus))
    block, flags = min(1024, triton.next_power_of_2(width)), (plus is not None, left)
    with _device(x):
        _splits[(rows, triton.cdiv(width, block))](x, given, out, of_h, width, out.stride(0), at, *flags, block)


@triton.jit(do_not_specialize=["t"])
def _windows(
    x_at, out_at, t, channels, height, width, rows, columns, of_c, of_t, of_ch, of_y, of_x, sy, sx, py, px, gy, gx,
    KX, size, stride, at, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    image, y, x = row // (rows * columns), (row // columns) % rows, row % columns
    tap, ch = i // channels, i % channels
    at_y, at_x = y * sy + (tap // KX) * gy - py, x * sx + (tap % KX) * gx - px
    fits = i < size
    inside = fits & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
    place = (image // t) * of_c + (image % t) * of_t + ch * of_ch + at_y * of_y + at_x * of_x
    _put(out_at + row * stride + at + i, tl.load(x_at + place, mask=inside, other=0.0), size, fits, True)


def windows_into(
    x: Tensor, out: Tensor, at: int, kernel: tuple[int, ...], places: tuple[int, ...],
    stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...],
) -> None:  # fmt: skip
    """As `split_into` for the patches of images [c, t, C, …], channels last, laid out while they are split."""
    c, t, channels, height, width = x.shape
    size = channels * kernel[0] * kernel[1]
    block = min(1024, triton.next_power_of_2(size))
    with _device(x):
        _windows[(c * t * places[0] * places[1], triton.cdiv(size, block))](
            x, out, t, channels, height, width, *places, *x.stride(), *stride, *padding, *dilation,
            kernel[1], size, out.stride(0), at, block,
        )  # fmt: skip
