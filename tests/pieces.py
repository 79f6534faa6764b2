"""Random networks for hypothesis, built out of the pieces of modern ones."""

import math

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from tests.modern import GatedMlp, RootMeanSquare, rotated

FUNCTIONS = [
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.sin,
    torch.cos,
    torch.erf,
    torch.abs,
    F.gelu,
    F.silu,
    F.elu,
    F.celu,
    F.selu,
    F.mish,
    F.softplus,
    F.softsign,
    F.hardtanh,
    F.hardsigmoid,
    F.hardswish,
    F.logsigmoid,
    F.leaky_relu,
    F.relu6,
    lambda x: F.gelu(x, approximate="tanh"),
    lambda x: x.square().log1p(),
    lambda x: (x * x + 1).sqrt(),
    lambda x: x * torch.rsqrt(x.pow(2) + 0.5),
    lambda x: 1 / (1 + x**2),
    lambda x: torch.tanh(x) ** 3,
    lambda x: torch.tanh(x).expm1(),
    lambda x: torch.exp(-x.square() / 2),
    lambda x: x.clamp(-0.5, 0.8),
    lambda x: torch.maximum(x, 0.3 * x.flip(-1)),
    lambda x: torch.minimum(x, torch.ones_like(x)),
    lambda x: x.div(x.abs().add(1)),
    lambda x: (x.sigmoid() + 0.5).log() - x,
    lambda x: (x.sigmoid() + 0.1).reciprocal(),
]
"""Elementwise, or nearly so, and not growing faster than their argument."""


class Piece(nn.Module):
    """A function of x and of modules or parameters."""

    def __init__(self, name, function, *parts):
        super().__init__()
        self.name, self.function, self.count = name, function, len(parts)
        for i, part in enumerate(parts):
            setattr(self, f"part{i}", part)

    def forward(self, x):
        return self.function(x, *(getattr(self, f"part{i}") for i in range(self.count)))

    def extra_repr(self):
        return self.name


def _pick(draw, *options):
    return draw(st.sampled_from(options))


def _weight(*shape):
    return nn.Parameter(torch.randn(shape) / math.sqrt(shape[-1] if shape else 1))


def _activation(draw, t, d):
    function = draw(st.sampled_from(FUNCTIONS))
    return Piece(f"function {FUNCTIONS.index(function)}", function)


def _heads(d):
    return 2 if d % 2 == 0 else 1


def _attention(draw, t, d):
    """Written out or torch's, with or without causal mask, rotary positions, a learned bias, shared keys."""
    kind = _pick(draw, "torch", "written", "causal", "rotary", "bias", "shared", "module", "padding")
    heads = _heads(d)
    if kind == "module":
        module = nn.MultiheadAttention(d, heads, batch_first=True, bias=draw(st.booleans()))
        return Piece("multihead", lambda x, module: x + module(x, x, x, need_weights=False)[0], module)

    def attend(x, qkv, out, bias):
        b, t, d = x.shape
        q, k, v = qkv(x).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        if kind == "written":
            found = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]), -1) @ v
        elif kind == "rotary" and q.shape[-1] % 2 == 0:
            found = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        elif kind == "shared":
            found = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
        elif kind == "padding":
            mask = torch.arange(t) < max(1, t - 1)
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(t, t))
        else:
            mask = bias if kind == "bias" else None
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=kind == "causal")
        return x + out(found.transpose(1, 2).reshape(b, t, d))

    return Piece(f"attention, {kind}", attend, nn.Linear(d, 3 * d), nn.Linear(d, d), _weight(t, t))


def _norm(draw, t, d):
    kinds = {
        "layer": lambda: nn.LayerNorm(d, elementwise_affine=draw(st.booleans())),
        "layer, two axes": lambda: nn.LayerNorm((t, d)),
        "rms": lambda: nn.RMSNorm(d),
        "rms, written out": lambda: RootMeanSquare(d),
        "unit": lambda: Piece("unit", lambda x: F.normalize(x + 0.1, dim=-1)),
        "deviation": lambda: Piece(
            "deviation", lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1)
        ),
        "groups": lambda: Piece("groups", lambda x, norm: norm(x.mT).mT, nn.GroupNorm(1, d)),
        "instances": lambda: Piece("instances", lambda x, norm: norm(x.mT).mT, nn.InstanceNorm1d(d, affine=True)),
    }
    if t == 1:
        del kinds["instances"]
    return kinds[draw(st.sampled_from([kind for kind in kinds if d > 1 or kind == "layer, two axes"]))]()


def _mlp(draw, t, d):
    inner = draw(st.sampled_from(FUNCTIONS))
    kinds = {
        "gated": lambda: Piece("gated mlp", lambda x, mlp: x + mlp(x), GatedMlp(d, d + 1)),
        "plain": lambda: Piece(
            "mlp", lambda x, up, down: x + down(inner(up(x))), nn.Linear(d, d + 2), nn.Linear(d + 2, d)
        ),
        "places": lambda: Piece(
            "over places", lambda x, mix: x + mix(x.transpose(1, 2)).transpose(1, 2), nn.Linear(t, t)
        ),
        "matrix": lambda: Piece("matrix", lambda x, W: x @ W, _weight(d, d)),
        "left": lambda: Piece("from the left", lambda x, W: W @ x, _weight(t, t)),
        "low rank": lambda: Piece("low rank", lambda x, A, B: x + x @ A.T @ B.T, _weight(2, d), _weight(d, 2)),
        "glu": lambda: Piece("glu", lambda x, up: F.glu(up(x), dim=-1), nn.Linear(d, 2 * d)),
        "experts": lambda: Piece(
            "experts",
            lambda x, gate, W: torch.einsum("btd,edo,bte->bto", x, W, gate(x).softmax(-1)),
            nn.Linear(d, 2),
            _weight(2, d, d),
        ),
        "bilinear": lambda: Piece("bilinear", lambda x, f: f(torch.tanh(x), x), nn.Bilinear(d, d, d)),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


def _along_time(draw, t, d):
    dilation = _pick(draw, 1, 2)
    groups = _pick(draw, 1, d)
    kinds = {
        "convolution": lambda: Piece(
            "causal convolution",
            lambda x, conv: x + conv(F.pad(x.mT, (dilation, 0))).mT,
            nn.Conv1d(d, d, 2, dilation=dilation, groups=groups),
        ),
        "transposed": lambda: Piece(
            "transposed convolution",
            lambda x, conv: conv(x.mT)[..., : x.shape[1]].mT,
            nn.ConvTranspose1d(d, d, 2, groups=groups),
        ),
        "lstm": lambda: Piece("lstm", lambda x, f: f(x)[0], nn.LSTM(d, d, batch_first=True)),
        "gru": lambda: Piece("gru", lambda x, f: x + f(x)[0], nn.GRU(d, d, batch_first=True)),
        "average": lambda: Piece("average of the past", lambda x: x.cumsum(1) / torch.arange(1, t + 1)[:, None]),
        "pooled": lambda: Piece("pooled", lambda x: F.max_pool1d(x.mT, 2, 1, 1)[..., :t].mT),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


def _moved(draw, t, d):
    """Pieces that move, cut, join and mask."""
    i, half = draw(st.integers(0, t - 1)), d // 2
    order, later = torch.randperm(t), torch.ones(t, d).triu(1).bool()
    kinds = {
        "concatenation": lambda: Piece(
            "concatenation",
            lambda x, f: f(torch.cat([x, x.roll(1, 1), x[:, i : i + 1].expand_as(x)], -1)),
            nn.Linear(3 * d, d),
        ),
        "split": lambda: Piece("split", lambda x: torch.cat([part.tanh() for part in x.split(1, -1)][::-1], -1)),
        "chunks": lambda: Piece("chunks", lambda x: torch.stack(x.chunk(t, 1), 1).squeeze(2) * 0.9),
        "gates": lambda: Piece(
            "gates", lambda x: torch.cat([x[..., :half] * x[..., -half:].sigmoid(), x[..., half:]], -1) if half else x
        ),
        "gather": lambda: Piece("gather", lambda x: x + x.gather(1, order[None, :, None].expand(len(x), -1, d)) * 0.5),
        "select": lambda: Piece("select", lambda x: x.index_select(1, order) - x[:, order.flip(0)]),
        "mask": lambda: Piece("mask", lambda x: x.masked_fill(later, 0.5)),
        "where": lambda: Piece("where", lambda x: torch.where(later, x, -x.flip(1))),
        "written": lambda: Piece("written into", _written),
        "scaled": lambda: Piece("scaled", lambda x, w, b: x * w + b, _weight(d), _weight(1, t, d)),
        "token": lambda: Piece(
            "first token", lambda x, w: torch.cat([w.expand(len(x), 1, -1), x[:, 1:]], 1), _weight(1, 1, d)
        ),
        "attended": lambda: Piece("weights", lambda x, w: x * F.softmax(x @ w, dim=1).unsqueeze(-1) * t, _weight(d)),
        "largest": lambda: Piece("less the largest", lambda x: x - x.amax((1, 2), keepdim=True)),
        "log": lambda: Piece("log of softmax", lambda x: x.log_softmax(-1)),
    }
    return kinds[draw(st.sampled_from(sorted(kinds)))]()


def _written(x):
    found = x * 1
    found[:, 0] = torch.tanh(x[:, -1])
    found *= 0.7
    return found.add_(x)


def _bounded(x):
    """Of a norm below four at every place, so that nothing piles up."""
    return x / (1 + x.norm(dim=-1, keepdim=True) / 4)


PIECES = [_attention, _norm, _mlp, _along_time, _moved, _activation]


def _heads_of(draw, t, d, outputs):
    pooled = {
        "mean": lambda x: x.mean(1),
        "largest": lambda x: x.amax(1),
        "last": lambda x: x[:, -1],
        "logsumexp": lambda x: x.logsumexp(1),
        "deviation": lambda x: x.var(1, unbiased=False),
        "mean and largest": lambda x: x.mean(dim=1) * x.amax(dim=1).sigmoid(),
    }
    name = draw(st.sampled_from([*sorted(pooled), "flat"]))
    if name == "flat":
        return [nn.Flatten(), nn.Linear(t * d, outputs)]
    return [Piece(name, pooled[name]), nn.Linear(d, outputs)]


def _of_sequences(draw, t, d, most=3):
    """Pieces on [b, t, d]."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        found += [draw(st.sampled_from(PIECES))(draw, t, d), Piece("bounded", _bounded)]
    return found


IMAGE_PIECES = ["convolution", "depthwise", "transposed", "norm", "squeeze", "pool", "resize", "shuffle", "dense"]


def _of_images(draw, c, size):
    """Pieces on [b, c, h, w]; also how many channels come out, and of which size."""
    kind = draw(st.sampled_from(IMAGE_PIECES))
    groups = _pick(draw, 1, 2)
    if kind == "convolution":
        stride, dilation = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
        padding = _pick(draw, "zeros", "reflect", "circular")
        conv = nn.Conv2d(c, c, 3, stride, dilation, dilation, groups, draw(st.booleans()), padding)
        return [conv, Piece("bounded", lambda x: F.silu(x) / 2)], c, (size - 1) // stride + 1
    if kind == "depthwise":
        f = nn.Conv2d(c, c, 3, padding="same", groups=c)
        return [Piece("depthwise", lambda x, f, s: x + s * f(x), f, _weight(c, 1, 1))], c, size
    if kind == "transposed":
        f = nn.ConvTranspose2d(c, c, 2, 1, groups=groups, bias=draw(st.booleans()))
        return [Piece("transposed", lambda x, f: torch.tanh(f(x))[..., :-1, 1:], f)], c, size
    if kind == "norm":
        norm = _pick(draw, nn.BatchNorm2d, nn.InstanceNorm2d, lambda c: nn.GroupNorm(groups, c))(c)
        return [norm, nn.PReLU(_pick(draw, 1, c))], c, size
    if kind == "squeeze":
        f = lambda x, f: x * F.hardsigmoid(f(F.adaptive_avg_pool2d(x, 1)))
        return [Piece("squeeze and excitation", f, nn.Conv2d(c, c, 1))], c, size
    if kind == "pool":
        pool = _pick(draw, nn.MaxPool2d(2, 1, 1), nn.AvgPool2d(2, 1, 1), nn.MaxPool2d(3, 1, 1))
        return [pool, Piece("cut", lambda x: x[..., :size, :size])], c, size
    if kind == "resize":
        mode = _pick(draw, "nearest", "bilinear", "bicubic")
        f = lambda x: F.interpolate(F.interpolate(x, scale_factor=2, mode=mode), size=(size, size), mode="bilinear")
        return [Piece(f"resized, {mode}", f)], c, size
    if kind == "shuffle":
        f = lambda x, f: F.pixel_shuffle(f(x), 2)[..., ::2, 1::2] + torch.channel_shuffle(x, groups)
        return [Piece("shuffled", f, nn.Conv2d(c, 4 * c, 1))], c, size
    f = lambda x, f: torch.cat([x, torch.relu(f(x))], dim=1)
    return [Piece("dense", f, nn.Conv2d(c, 2, 3, padding=1))], c + 2, size


@st.composite
def modern_networks(draw):
    """Sequences of numbers, of tokens, or images: net in float64, a function that draws inputs, and outputs."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    outputs, kind = draw(st.integers(1, 3)), _pick(draw, "numbers", "tokens", "image", "patches")
    d, t = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    if kind == "numbers":
        layers = [nn.Linear(3, d), *_of_sequences(draw, t, d), *_heads_of(draw, t, d, outputs)]
        inputs = lambda n: torch.randn(n, t, 3).double()
    elif kind == "tokens":
        tokens = nn.Embedding(7, d, padding_idx=draw(st.sampled_from([None, 2])))
        if draw(st.booleans()):
            head = [Piece("tied", lambda x, tokens: F.linear(x.mean(1), tokens.weight), tokens)]
        else:
            head = _heads_of(draw, t, d, 7)
        embed = Piece("embed", lambda x, tokens, f: tokens(x) + f(torch.arange(t)), tokens, nn.Embedding(t, d))
        layers, outputs = [embed, *_of_sequences(draw, t, d), *head], 7
        inputs = lambda n: torch.randint(0, 7, (n, t))
    else:
        c, size = _pick(draw, 2, 4), draw(st.integers(4, 6))
        inputs = lambda n, size=size: torch.randn(n, 2, size, size).double()
        layers = [nn.Conv2d(2, c, 3, padding=1)]
        for _ in range(draw(st.integers(1, 3))):
            if size < 3:
                break
            more, c, size = _of_images(draw, c, size)
            layers += more
        if kind == "patches" and size >= 2:
            places = (size // 2) ** 2
            layers += [nn.Conv2d(c, d, 2, 2), Piece("patches", lambda x: x.flatten(2).transpose(1, 2))]
            layers += [*_of_sequences(draw, places, d, 2), *_heads_of(draw, places, d, outputs)]
        else:
            layers += [Piece("mean", lambda x: x.mean((-2, -1))), nn.Linear(c, outputs)]
    return nn.Sequential(*layers).double().eval(), inputs, outputs
