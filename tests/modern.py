"""A table of small modern networks: transformers, language models, convolutional and recurrent nets, and their pieces.

Each is written as people write such networks, so that the functions they call are those that Structured has to read.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

import local_elasticity as le

# Attention


class Block(nn.Module):
    """A transformer block whose queries, keys and values come out of one layer; a layer scale on each branch."""

    def __init__(self, d=8, heads=2, scale=True):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.scale = nn.Parameter(torch.rand(2, d)) if scale else None

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        x = x + (mixed if self.scale is None else mixed * self.scale[0])
        moved = self.mlp(x)
        return x + (moved if self.scale is None else moved * self.scale[1])


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, and blocks with and without layer scale."""

    def __init__(self):
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.blocks = nn.Sequential(Block(), Block(scale=False))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class SelfAttention(nn.Module):
    """torch's own multi-head attention, on [b, t, d] or [t, b, d]."""

    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=batch_first), nn.Linear(8, 3)

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(self.attention(x, x, x)[0].mean(1 if self.batch_first else 0))


class LearnedQueries(nn.Module):
    """Cross attention: learned queries read a sequence of other width."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(3, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, kdim=8, vdim=8)
        self.head = nn.Linear(18, 3)

    def forward(self, x):
        found, _ = self.attention(self.queries.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(found.flatten(1))


class Encoder(nn.Module):
    """nn.TransformerEncoder with a causal mask, or with a padding mask that comes with the inputs."""

    def __init__(self, norm_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=norm_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x, padding=None):
        if padding is not None:
            return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.head(self.encoder(x, mask=mask)[:, -1])


class Decoder(nn.Module):
    """nn.TransformerDecoderLayer: causal attention to the first part, cross attention to the second."""

    def __init__(self, activation="gelu"):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True, activation=activation)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1)
        return self.head(self.layer(x[:, :3], x[:, 3:], tgt_mask=mask).mean(1))


class RootMeanSquare(nn.Module):
    """RMS norm, written out with a cast as in Llama."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(d) + 0.5)

    def forward(self, x):
        wide = x.to(torch.float64)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class GatedMlp(nn.Module):
    """W₂(silu(G x) ⊙ W₁ x)."""

    def __init__(self, d, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotated(x):
    """Rotary positions of [b, heads, t, d]."""
    half = x.shape[-1] // 2
    speeds = 10.0 ** -torch.arange(half, dtype=x.dtype, device=x.device)
    angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * speeds
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class LanguageModel(nn.Module):
    """A decoder of tokens: position embedding by arange, rotary positions, grouped queries, RMS norm, gated MLP.

    The causal mask is written out, with heads of keys repeated by expand, or left to torch. The head may be tied.
    """

    def __init__(self, tied, written_out):
        super().__init__()
        d = 8
        self.written_out = written_out
        self.tokens, self.positions = nn.Embedding(11, d), nn.Embedding(6, d)
        self.first, self.second, self.last = RootMeanSquare(d), RootMeanSquare(d), nn.RMSNorm(d)
        self.q, self.k, self.v = (nn.Linear(d, size, bias=False) for size in (8, 4, 4))
        self.out, self.mlp, self.head = nn.Linear(d, d, bias=False), GatedMlp(d, 12), nn.Linear(d, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, -1, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotated(q), rotated(k)
        if self.written_out:
            scores = (q @ k.expand(-1, 2, -1, -1).transpose(-1, -2)) / math.sqrt(4)
            later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            found = scores.masked_fill(later, float("-inf")).softmax(-1) @ v.expand(-1, 2, -1, -1)
        else:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(found.transpose(1, 2).reshape(b, t, d))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = x + self.attention(self.first(x))
        x = x + self.mlp(self.second(x))
        return self.head(self.last(x))[:, -1]


class Bert(nn.Module):
    """Tokens, segments and positions; a mask of the padding as large negative numbers; a pooled first token."""

    def __init__(self):
        super().__init__()
        d = 8
        self.tokens, self.segments = nn.Embedding(11, d, padding_idx=0), nn.Embedding(2, d)
        self.positions = nn.Embedding(6, d)
        self.register_buffer("places", torch.arange(6)[None])
        self.norm, self.after, self.last = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.wide, self.narrow = nn.Linear(d, 12), nn.Linear(12, d)
        self.pool, self.head, self.dropout = nn.Linear(d, d), nn.Linear(d, 3), nn.Dropout(0.1)

    def forward(self, input_ids, token_type_ids, attention_mask):
        x = self.tokens(input_ids) + self.segments(token_type_ids) + self.positions(self.places)
        x = self.dropout(self.norm(x))
        q, k, v = (f(x).view(*x.shape[:2], 2, 4).permute(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        added = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        weights = F.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(4) + added, dim=-1)
        mixed = torch.matmul(self.dropout(weights), v).permute(0, 2, 1, 3).contiguous()
        x = self.after(self.out(mixed.view(*x.shape[:2], 8)) + x)
        x = self.last(self.narrow(F.gelu(self.wide(x))) + x)
        return self.head(torch.tanh(self.pool(x[:, 0])))


class LinearAttention(nn.Module):
    """Causal attention without softmax: features elu + 1, sums over the past."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).split(4, dim=-1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        past = torch.cumsum(torch.einsum("btd,bte->btde", k, v), dim=1)
        total = torch.einsum("btd,btd->bt", q, k.cumsum(1)).unsqueeze(-1)
        return self.head((torch.einsum("btd,btde->bte", q, past) / total).mean(1))


class ComplexRotary(nn.Module):
    """Attention whose rotary positions are products of complex numbers."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def rotated(self, x):
        pairs = torch.view_as_complex(x.type(x.dtype).reshape(*x.shape[:-1], -1, 2))
        angles = torch.outer(torch.arange(x.shape[1]), 10.0 ** -torch.arange(4)).to(x.dtype)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2).type_as(x)

    def forward(self, x):
        q, k, v = self.qkv(x).tensor_split(3, -1)
        weights = torch.special.softmax(torch.linalg.matmul(self.rotated(q), self.rotated(k).mH) / 3, -1)
        return self.head((weights @ v).mean(1))


class Swin(nn.Module):
    """Attention in windows, shifted by torch.roll, with a table of relative position biases."""

    def __init__(self, d=8, heads=2, window=2, shift=1):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.patches, self.norm = nn.Conv2d(3, d, 2, 2), nn.LayerNorm(d)
        self.qkv, self.out, self.merge = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(4 * d, d, bias=False)
        self.biases = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 12), nn.GELU(), nn.Linear(12, d))
        self.head = nn.Linear(d, 3)

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.biases[self.index.view(-1)].view(t, t, -1).permute(2, 0, 1).contiguous()
        weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = self.patches(x).permute(0, 2, 3, 1)
        b, rows, columns, d = x.shape
        w = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), dims=(1, 2))
        y = y.view(b, rows // w, w, columns // w, w, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, d)
        y = self.attention(y).view(b, rows // w, columns // w, w, w, d).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(y.reshape(b, rows, columns, d), (self.shift, self.shift), dims=(1, 2))
        x = x + self.mlp(x)
        x = self.merge(torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1))
        return self.head(x.mean((1, 2)))


class Universal(nn.Module):
    """One block, applied three times."""

    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 3)

    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return self.head(x.amax(1))


class Mixer(nn.Module):
    """An MLP over places, then one over channels."""

    def __init__(self, t=5, d=8):
        super().__init__()
        self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)
        self.places = nn.Sequential(nn.Linear(t, 6), nn.GELU(), nn.Linear(6, t))
        self.channels = nn.Sequential(nn.Linear(d, 12), nn.GELU(approximate="tanh"), nn.Linear(12, d))
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        x = x + self.places(self.first(x).mT).mT
        x = x + self.channels(self.second(x))
        return self.head(x.mean(1))


class Routed(nn.Module):
    """The two experts that a gate prefers for each token, as Mixtral and Switch have them."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(8, 4), nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        with torch.no_grad():
            self.gate.weight.mul_(0.1), self.gate.bias.copy_(torch.tensor([9.0, -3.0, 3.0, -9.0]))

    def forward(self, x):
        tokens = x.reshape(-1, 8)
        shares, chosen = torch.topk(torch.softmax(self.gate(tokens) / 4, -1), 2, dim=-1)
        shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros(tokens.shape, dtype=x.dtype, device=x.device)
        for i, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == i)
            out.index_add_(0, rows, torch.tanh(expert(tokens[rows])) * shares[rows, places, None])
        return self.head(out.view_as(x).mean(1))


class Unpadded(nn.Module):
    """Only the places that are not padding pass through a layer; the results are written where they were."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x, padding):
        x, written = self.first(x), torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        written[~padding] = torch.tanh(self.second(x[~padding]))
        again = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x).masked_fill_(padding[..., None], 0.0)
        return self.head((written + again.abs_().add_(1).sqrt_()).mean(1))


class Experts(nn.Module):
    """A soft mixture of experts, whose weights are one tensor."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.inner, self.outer = nn.Parameter(torch.randn(3, 8, 6) / 3), nn.Parameter(torch.randn(3, 6, 4) / 3)
        self.biases = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        shares = torch.softmax(self.gate(x), -1)
        hidden = F.relu(torch.einsum("btd,edh->bteh", x, self.inner) + self.biases).square()
        return torch.einsum("bteh,eho,bte->bo", hidden, self.outer, shares)


# Images and signals


class ConvNext(nn.Module):
    """Depthwise convolution, norm over channels that come last, inverted bottleneck, layer scale."""

    def __init__(self):
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 6, 2, 2), nn.Conv2d(6, 6, 7, padding=3, groups=6)
        self.norm, self.wide, self.narrow = nn.LayerNorm(6, eps=1e-6), nn.Linear(6, 12), nn.Linear(12, 6)
        self.scale, self.head = nn.Parameter(torch.rand(6, 1, 1)), nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.narrow(F.gelu(self.wide(self.norm(y)))).permute(0, 3, 1, 2)
        return self.head((x + self.scale * y).mean((-2, -1)))


class MobileNet(nn.Module):
    """Depthwise, grouped and dilated convolutions; squeeze and excitation; hard activations."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.grouped = nn.Conv2d(6, 12, 3, padding=2, dilation=2, groups=3)
        self.squeeze, self.excite, self.head = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1), nn.Linear(12, 3)
        self.norm.running_mean.normal_(), self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = F.hardswish(self.norm(self.stem(x)))
        x = self.grouped(F.silu(self.depthwise(x), inplace=True))
        weights = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.head((x * weights).mean((2, 3)))


class Signal(nn.Module):
    """A WaveNet on [b, channels, t]: causal, dilated, gated convolutions with skips."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 4, 3, padding="same")
        self.gated = nn.ModuleList([nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(2)])
        self.out, self.head = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(2)]), nn.Linear(4, 3)

    def forward(self, x):
        x, skips = self.stem(x), 0
        for i, (gated, out) in enumerate(zip(self.gated, self.out, strict=True)):
            y = out(F.glu(gated(F.pad(x, (2**i, 0))), dim=1))
            x, skips = x + y, skips + y
        return self.head(F.max_pool1d(F.leaky_relu(skips, 0.1), 2).mean(-1))


class Volume(nn.Module):
    """3-D convolution and pooling, then transposed convolutions in 1, 2 and 3 dimensions."""

    def __init__(self):
        super().__init__()
        self.conv, self.back3 = nn.Conv3d(1, 3, 2, padding=1), nn.ConvTranspose3d(3, 4, 2, groups=1)
        self.back2 = nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)
        self.back1, self.head = nn.ConvTranspose1d(2, 3, 2, dilation=2), nn.Linear(3, 2)

    def forward(self, x):
        x = torch.tanh(self.back3(F.avg_pool3d(F.softplus(self.conv(x)), 2)))
        x = F.selu(self.back2(x.mean(2)))
        return self.head(self.back1(x.flatten(2)).mean(-1))


class Normalized(nn.Module):
    """A convolutional net with group norm and instance norms, with and without weights."""

    def __init__(self):
        super().__init__()
        self.stem, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 2)
        self.groups, self.bare = nn.GroupNorm(3, 6), nn.GroupNorm(2, 6, affine=False)
        self.instances, self.without = nn.InstanceNorm2d(6, affine=True), nn.InstanceNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.elu(self.groups(self.stem(x)))
        x = self.bare(torch.relu(self.instances(self.second(x))))
        return self.head(self.without(x.flatten(2)).square().amax(-1))


class Pooled(nn.Module):
    """Pools by maximum of every kind: with windows beyond the edge, adaptive, in three dimensions."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 3), nn.Linear(24, 3)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 3, 2, ceil_mode=True)
        volume = F.max_pool3d(x[:, None], (2, 1, 2)).flatten(1, 2)
        parts = [F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (2, 2)), F.adaptive_max_pool2d(volume, (2, 1))]
        x = torch.cat([part.flatten(1) for part in parts], 1)
        return self.head(x / torch.linalg.norm(x, dim=1, keepdim=True))


class Segmenter(nn.Module):
    """A class for every pixel: pooled features interpolated back, beside a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Conv2d(10, 2, 1)

    def forward(self, x):
        fine = F.relu(self.stem(x))
        coarse = F.relu(self.deep(F.max_pool2d(fine, 2)))
        wide = F.interpolate(coarse, size=fine.shape[-2:], mode="bilinear", align_corners=False)
        near = F.interpolate(F.avg_pool2d(fine, 2)[:, :4], scale_factor=2, mode="nearest")
        return self.head(torch.cat([wide, near, self.up(coarse)], 1))


class UNet(nn.Module):
    """Down by strides, up by pixel shuffle, with a skip."""

    def __init__(self, channels=1):
        super().__init__()
        self.first, self.down = nn.Conv2d(channels, 4, 3, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.middle, self.norm = nn.Conv2d(6, 16, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(2, 6)
        self.last = nn.Conv2d(8, channels, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        skip = F.mish(self.first(x))
        deep = F.silu(self.norm(self.down(skip)))
        return self.last(torch.cat([skip, F.pixel_shuffle(self.middle(deep), 2)], dim=1))


class Denoiser(nn.Module):
    """A diffusion model's net: sinusoidal time, which shifts and scales the features."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.out = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x, t):
        speeds = torch.exp(-math.log(100) * torch.arange(4, dtype=x.dtype, device=x.device) / 4)
        angles = t[:, None] * speeds[None]
        shift, scale = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None].chunk(2, dim=1)
        return x + self.out(F.silu(self.norm(self.stem(x)) * (scale + 1) + shift))


# Recurrent nets


class Recurrent(nn.Module):
    """The last outputs of a recurrent layer of torch's, and its last states."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer, size = kind(4, 5, batch_first=True, **options), options.get("proj_size", 5)
        self.head = nn.Linear(10 if options.get("bidirectional") else size, 2)
        self.of_states = nn.Linear(5, 2)

    def forward(self, x):
        outputs, states = self.layer(x)
        states = F.pad(states[0], (0, 5 - states[0].shape[-1])) + states[1] if isinstance(states, tuple) else states
        return self.head(outputs[:, -1]) + self.of_states(states[0])


class Packed(nn.Module):
    """A recurrent layer of sequences of several lengths: its outputs, and its last states."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(4, 5, batch_first=True, **options)
        self.head, self.of_states = nn.LazyLinear(2), nn.LazyLinear(2)
        self(*_lengths(2))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, states = self.layer(packed)
        states = states[0] if isinstance(states, tuple) else states
        padded, _ = pad_packed_sequence(outputs, batch_first=True, padding_value=0.5, total_length=5)
        return self.head(padded.mean(1)) + self.of_states(states[-1])


class LearnedState(nn.Module):
    """An LSTM on [t, b, d] that begins in a learned state."""

    def __init__(self):
        super().__init__()
        self.h, self.c = nn.Parameter(torch.randn(1, 1, 5)), nn.Parameter(torch.randn(1, 1, 5))
        self.layer, self.head = nn.LSTM(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        state = self.h.repeat(1, len(x), 1), self.c.expand(-1, len(x), -1).contiguous()
        return self.head(self.layer(x.transpose(0, 1), state)[0][-1])


class Cells(nn.Module):
    """A loop over time that calls an LSTM's cell and a GRU's."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.head = nn.LSTMCell(4, 5), nn.GRUCell(5, 3), nn.Linear(3, 2)

    def forward(self, x):
        h, c, g = x.new_zeros(len(x), 5), x.new_zeros(len(x), 5), torch.zeros(len(x), 3, dtype=x.dtype)
        for one in x.unbind(1):
            h, c = self.lstm(one, (h, c))
            g = self.gru(h, g)
        return self.head(g)


class StateSpace(nn.Module):
    """A diagonal linear recurrence whose decay is computed from parameters, gated by the input."""

    def __init__(self):
        super().__init__()
        self.decay, self.size = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.into, self.gate, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        keep = torch.exp(-F.softplus(self.decay) * torch.sigmoid(self.size))
        into, state, states = self.into(x), torch.zeros(len(x), 6, dtype=x.dtype), []
        for i in range(x.shape[1]):
            state = keep * state + (1 - keep) * into[:, i]
            states.append(state)
        return self.head((torch.stack(states, dim=1) * torch.sigmoid(self.gate(x))).sum(dim=1))


# Weights that are computed, shared or frozen


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Parametrized(nn.Module):
    """Weight norm, spectral norm, orthogonal weights, a parametrization of one's own, and PReLU."""

    def __init__(self):
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(4, 6))
        self.second = parametrizations.spectral_norm(nn.Linear(6, 6))
        self.third = nn.Linear(6, 6)
        parametrize.register_parametrization(self.third, "weight", Symmetric())
        self.turn = parametrizations.orthogonal(nn.Linear(6, 6))
        self.other = parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley")
        self.each, self.one, self.head = nn.PReLU(6), nn.PReLU(), nn.Linear(6, 2)

    def forward(self, x):
        x = self.other(torch.tanh(self.turn(self.each(self.first(x)))))
        return self.head(torch.tanh(self.third(self.one(self.second(x)))))


class ThreeFactors(nn.Module):
    """An einsum of three operands, and a scale that is a scalar."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5, 3, 2))
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return torch.einsum("bi,ij,jkl->bkl", x, self.a, self.b).flatten(1) * self.scale.exp()


class TiedAutoencoder(nn.Module):
    """A square weight that is multiplied from either side: the same change, by rows and by columns."""

    def __init__(self, d=8):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(d, d) / 2), nn.Parameter(torch.randn(d))

    def forward(self, x):
        return F.linear(torch.tanh(x @ self.weight + self.bias), self.weight)


class SoftTokens(nn.Module):
    """An embedding whose rows are looked up, and also mixed: as many rows as columns."""

    def __init__(self, d=8):
        super().__init__()
        self.tokens, self.head = nn.Embedding(d, d), nn.Linear(d, 3)

    def forward(self, tokens):
        x = self.tokens(tokens).mean(1)
        return self.head(torch.tanh(x.softmax(-1) @ self.tokens.weight))


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, base, rank=2, alpha=4.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 2)
        self.up = nn.Parameter(torch.randn(base.out_features, rank) / 2)

    def forward(self, x):
        return self.base(x) + (x @ self.down.T @ self.up.T) * self.scale


class LowRankAdaptation(nn.Module):
    """A transformer whose weights are frozen but for low-rank adapters."""

    def __init__(self):
        super().__init__()
        self.block, self.head = Block().requires_grad_(False), nn.Linear(8, 3).requires_grad_(False)
        self.block.qkv, self.block.mlp[1] = Adapted(self.block.qkv), Adapted(self.block.mlp[1])

    def forward(self, x):
        return self.head(self.block(x).mean(1))


# Other kinds of inputs


class GraphNet(nn.Module):
    """Graph convolutions and an attention along edges; the adjacency comes with each example."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.score = nn.Parameter(torch.randn(2, 6))

    def forward(self, x, edges):
        edges = edges + torch.eye(edges.shape[-1], dtype=edges.dtype)
        size = edges.sum(-1, keepdim=True).rsqrt()
        x = F.relu(self.first((size * edges * size.mT) @ x))
        y = self.second(x)
        scores = F.leaky_relu((y @ self.score[0]).unsqueeze(2) + (y @ self.score[1]).unsqueeze(1), 0.2)
        weights = torch.where(edges > 0, scores, torch.full_like(scores, -9e15)).softmax(-1)
        return self.head(F.elu(torch.bmm(weights, y)).sum(1))


class Tabular(nn.Module):
    """An embedding for each column of categories beside numbers that are scaled one by one."""

    def __init__(self):
        super().__init__()
        self.columns = nn.ModuleList([nn.Embedding(size, 3) for size in (5, 4, 3)])
        self.scale, self.shift = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(2, 3))
        self.body = nn.Sequential(nn.Linear(15, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.body[1].running_mean.normal_(), self.body[1].running_var.uniform_(0.5, 2)

    def forward(self, categories, numbers):
        parts = [column(categories[:, i]) for i, column in enumerate(self.columns)]
        numbers = numbers[..., None] * self.scale + self.shift
        return self.body(torch.cat([*parts, numbers.flatten(1)], 1))


class BagOfWords(nn.Module):
    """A sum and a mean of embeddings, by nn.EmbeddingBag; bags are rows, or parts of a list that begin at offsets."""

    def __init__(self, offsets=False):
        super().__init__()
        self.offsets = offsets
        self.mean, self.sum = nn.EmbeddingBag(11, 4), nn.EmbeddingBag(11, 4, mode="sum", padding_idx=2)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        starts = torch.arange(0, tokens.numel(), tokens.shape[1]) if self.offsets else None
        tokens = tokens.reshape(-1) if self.offsets else tokens
        return self.head(torch.tanh(torch.cat([self.mean(tokens, starts), self.sum(tokens, starts)], 1)))


class Contrastive(nn.Module):
    """Two towers on the sphere: cosines to learned prototypes over a learned temperature."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)), nn.Linear(3, 5)
        self.prototypes, self.temperature = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.tensor(1.0))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=-1), self.right(b)
        logits = self.temperature.exp() * a @ F.normalize(self.prototypes, dim=-1).t()
        both = F.cosine_similarity(a[:, None], b[:, None].expand(-1, 3, -1) + self.prototypes, dim=-1)
        return logits + both / (a - b / b.norm(dim=-1, keepdim=True)).norm(dim=-1, keepdim=True)


@dataclass(frozen=True)
class Modern:
    """A network with its inputs. Its labels are classes, or numbers as many as it has outputs."""

    name: str
    make: Callable[[], nn.Module]
    examples: Callable[[int], Any]
    loss: str = "cross_entropy"
    n: int = 4
    m: int = 3

    def made(self, dtype=torch.float64, seed=3):
        """Net, sources (inputs, labels) and targets."""
        torch.manual_seed(seed)
        net = self.make().to(dtype).eval()
        inputs, targets = (self._cast(self.examples(n), dtype) for n in (self.n, self.m))
        with torch.no_grad():
            outputs = self.call(net, inputs)
        classes = torch.arange(self.n) % outputs.shape[1]
        labels = torch.randn_like(outputs) if self.loss == "half_mse" else classes
        if self.loss == "cross_entropy" and outputs.ndim > 2:
            labels = torch.randint(0, outputs.shape[1], (self.n, *outputs.shape[2:]))
        return net, (inputs, labels), targets

    def problem(self, net):
        return le.Problem.of(net, self.loss)

    def call(self, net, inputs):
        if isinstance(inputs, dict):
            return net(**inputs)
        return net(*inputs) if isinstance(inputs, tuple) else net(inputs)

    def _cast(self, inputs, dtype):
        return tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, inputs)


def _normal(*shape):
    return lambda n: torch.randn(n, *shape)


def _tokens(n, t=6, words=11):
    return torch.randint(0, words, (n, t))


def _documents(n):
    """Token, segment and mask; the ends of some are padding."""
    mask = (torch.arange(6) < 6 - torch.arange(n)[:, None] % 3).long()
    return {"input_ids": _tokens(n) * mask, "token_type_ids": _tokens(n, words=2), "attention_mask": mask}


def _padded(n):
    return torch.randn(n, 5, 8), torch.arange(5) >= 5 - torch.arange(n)[:, None] % 3


def _lengths(n):
    return torch.randn(n, 5, 4), 5 - torch.arange(n) * 2 % 5


def _graphs(n):
    edges = (torch.rand(n, 4, 4) < 0.4).float()
    return torch.randn(n, 4, 4), torch.maximum(edges, edges.transpose(1, 2))


def _table(n):
    categories = torch.stack([torch.randint(0, size, (n,)) for size in (5, 4, 3)], 1)
    return {"categories": categories, "numbers": torch.randn(n, 2)}


IMAGES, SEQUENCES, SERIES = _normal(3, 8, 8), _normal(5, 8), _normal(5, 4)

MODERN = [
    Modern("vision transformer", VisionTransformer, IMAGES),
    Modern("attention", lambda: SelfAttention(True), SEQUENCES),
    Modern("attention, time first", lambda: SelfAttention(False), SEQUENCES),
    Modern("learned queries", LearnedQueries, SEQUENCES),
    Modern("encoder, causal", lambda: Encoder(True), SEQUENCES),
    Modern("encoder, padded", lambda: Encoder(False), _padded),
    Modern("decoder", Decoder, SEQUENCES),
    Modern("language model, tied, mask written out", lambda: LanguageModel(True, True), _tokens),
    Modern("language model, grouped queries", lambda: LanguageModel(False, False), _tokens),
    Modern("bert", Bert, _documents),
    Modern("linear attention", LinearAttention, SEQUENCES),
    Modern("complex rotary", ComplexRotary, SEQUENCES),
    Modern("swin", Swin, IMAGES),
    Modern("one block three times", Universal, SEQUENCES),
    Modern("mixer", Mixer, SEQUENCES),
    Modern("experts", Experts, SEQUENCES),
    Modern("routed", Routed, SEQUENCES),
    Modern("unpadded", Unpadded, _padded),
    Modern("convnext", ConvNext, IMAGES),
    Modern("mobilenet", MobileNet, IMAGES),
    Modern("signal", Signal, _normal(2, 8)),
    Modern("volume", Volume, _normal(1, 3, 4, 4)),
    Modern("norms", Normalized, _normal(3, 5, 5)),
    Modern("pools", Pooled, IMAGES),
    Modern("segmenter", Segmenter, _normal(3, 6, 6)),
    Modern("u-net", UNet, _normal(1, 6, 6), "half_mse"),
    Modern("denoiser", Denoiser, lambda n: (torch.randn(n, 1, 5, 5), 100 * torch.rand(n)), "half_mse"),
    Modern("lstm", lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), SERIES),
    Modern("lstm without biases", lambda: Recurrent(nn.LSTM, bias=False), SERIES),
    Modern("gru", lambda: Recurrent(nn.GRU, bidirectional=True), SERIES),
    Modern("rnn", lambda: Recurrent(nn.RNN, num_layers=2), SERIES),
    Modern("rnn of relu", lambda: Recurrent(nn.RNN, nonlinearity="relu"), SERIES),
    Modern("lstm from a learned state", LearnedState, SERIES),
    Modern("lstm with projections", lambda: Recurrent(nn.LSTM, num_layers=2, proj_size=3), SERIES),
    Modern("packed lstm", lambda: Packed(nn.LSTM, num_layers=2, bidirectional=True), _lengths),
    Modern("packed gru", lambda: Packed(nn.GRU, bias=False), _lengths),
    Modern("cells", Cells, SERIES),
    Modern("state space", StateSpace, SERIES),
    Modern("parametrized", Parametrized, _normal(4)),
    Modern("three factors", ThreeFactors, _normal(4)),
    Modern("tied autoencoder", TiedAutoencoder, _normal(8), "half_mse"),
    Modern("soft tokens", SoftTokens, lambda n: _tokens(n, 3, 8)),
    Modern("low-rank adapters", LowRankAdaptation, SEQUENCES),
    Modern("graph", GraphNet, _graphs),
    Modern("tabular", Tabular, _table),
    Modern("bag of words", BagOfWords, _tokens),
    Modern("bag of words, offsets", lambda: BagOfWords(True), _tokens),
    Modern("contrastive", Contrastive, lambda n: (torch.randn(n, 4), torch.randn(n, 3))),
]

MODERN_OF = {one.name: one for one in MODERN}
