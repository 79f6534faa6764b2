"""Kinds of models that people bring, for `test_promises.py`: what each does that a measurement could trip over."""

import contextlib
import functools
import itertools
import random
import threading
import types
import warnings
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

N = 5
"""Examples."""


@dataclass(frozen=True)
class Kind:
    """A model made anew by `make`, in float64 unless `dtype` says otherwise, and what one of its inputs is like.

    `refused` is the start of the error that every measurement gives; None where values are the oracle's.
    """

    name: str
    make: Callable[[], Any]
    shape: tuple[int, ...] = (4,)
    tokens: int = 0
    output: Callable[[Any], torch.Tensor] | None = None
    params: Any = None
    dtype: torch.dtype = torch.float64
    refused: str | None = None
    inputs: Callable[[], Any] | None = None

    def model(self):
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = self.make()
        return model.to(self.dtype) if isinstance(model, nn.Module) and self.dtype else model

    def examples(self):
        generator = torch.Generator().manual_seed(5)
        if self.inputs is not None:
            return self.inputs()
        if self.tokens:
            return torch.randint(self.tokens, (N, *self.shape), generator=generator)
        return torch.randn(N, *self.shape, generator=generator, dtype=torch.float64).to(self.dtype or torch.float32)


KINDS: list[Kind] = []


def kind(name, make=None, **options):
    """Add a kind; as a decorator, of the module class below it."""
    if make is None:
        return lambda cls: (KINDS.append(Kind(name, cls, **options)), cls)[1]
    KINDS.append(Kind(name, make, **options))
    return make


def between(*layers, d=6):
    """A net of two linear layers with something between them."""
    return lambda: nn.Sequential(nn.Linear(4, d), *(layer() for layer in layers), nn.Linear(d, 2))


# --- activations
ACTIVATIONS = (
    "ReLU Tanh GELU SiLU ELU SELU CELU Softplus LeakyReLU PReLU Hardtanh Hardswish Hardsigmoid ReLU6 Mish Softsign "
    "Tanhshrink LogSigmoid RReLU Sigmoid Hardshrink Softshrink Identity"
)
for activation in ACTIVATIONS.split():
    kind(activation, between(getattr(nn, activation)))
kind("Threshold", between(lambda: nn.Threshold(0.1, 0.0)))
kind("Softmax", between(lambda: nn.Softmax(-1)))
kind("LogSoftmax", between(lambda: nn.LogSoftmax(-1)))
kind("GLU", lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.Linear(3, 2)))
kind("PReLU, a slope for each unit", between(lambda: nn.PReLU(6)))
kind("linear", lambda: nn.Linear(4, 2))
kind("one output", lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)))
kind(
    "deep",
    lambda: nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(4, 4), nn.Tanh())], nn.Linear(4, 2)),
)

# --- normalisations and dropout, left in training mode by the user
kind("batch norm", between(lambda: nn.BatchNorm1d(6)))
kind("batch norm without affine part", between(lambda: nn.BatchNorm1d(6, affine=False)))
kind("layer norm", between(lambda: nn.LayerNorm(6)))
kind("rms norm", between(lambda: nn.RMSNorm(6)))
kind("group norm", between(lambda: nn.GroupNorm(2, 6)))
kind("dropout", between(nn.Dropout))
kind("alpha dropout", between(nn.AlphaDropout))
kind("sync batch norm", between(lambda: nn.SyncBatchNorm(6)))

# --- images, volumes, sequences
image = {"shape": (2, 6, 6)}
signal = {"shape": (2, 8)}


def of_image(*layers, features=None):
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten(), nn.LazyLinear(2))


def ready(make, shape):
    """Lazy layers get their shapes before the user hands the model in."""

    def made():
        model = make()
        model(torch.zeros(2, *shape))
        return model

    return made


def convolution(name, *layers, shape=(2, 6, 6)):
    kind(name, ready(of_image(*layers), shape), shape=shape)


convolution("conv2d", lambda: nn.Conv2d(2, 3, 3), nn.ReLU)
convolution("conv2d, strided and padded", lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.ReLU)
convolution("conv2d, padding same", lambda: nn.Conv2d(2, 3, 3, padding="same"), nn.Tanh)
convolution("conv2d, circular", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh)
convolution("conv2d, depthwise", lambda: nn.Conv2d(2, 4, 3, groups=2), nn.Tanh)
convolution("conv2d, dilated", lambda: nn.Conv2d(2, 3, 2, dilation=2), nn.Tanh)
convolution("conv2d, batch norm, residual sum", lambda: Residual(2), nn.ReLU)
convolution("transposed conv2d", lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Tanh)
convolution("conv1d", lambda: nn.Conv1d(2, 3, 3), nn.Tanh, shape=(2, 8))
convolution("conv3d", lambda: nn.Conv3d(1, 2, 2), nn.Tanh, shape=(1, 3, 3, 3))
convolution("instance norm", lambda: nn.Conv2d(2, 3, 3), lambda: nn.InstanceNorm2d(3, affine=True), nn.Tanh)
convolution("local response norm", lambda: nn.Conv2d(2, 3, 3), lambda: nn.LocalResponseNorm(2))
convolution("max pooling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.MaxPool2d(2))
convolution("average pooling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.AvgPool2d(2))
convolution("adaptive pooling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.AdaptiveAvgPool2d(1))
convolution("adaptive max pooling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.AdaptiveMaxPool2d(2))
convolution("lp pooling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.LPPool2d(2, 2))
convolution("upsampling", lambda: nn.Conv2d(2, 3, 3), lambda: nn.Upsample(scale_factor=2, mode="bilinear"))
convolution("pixel shuffle", lambda: nn.Conv2d(2, 4, 3), lambda: nn.PixelShuffle(2))
convolution("zero padding", lambda: nn.ZeroPad2d(1), lambda: nn.Conv2d(2, 3, 3), nn.ReLU)
convolution("spatial dropout", lambda: nn.Conv2d(2, 3, 3), nn.Dropout2d)
convolution("channels last", lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), nn.ReLU)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(d, d, 3, padding=1), nn.BatchNorm2d(d)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


# --- tokens
class Words(nn.Module):
    def __init__(self, *args, bag=False, **options):
        super().__init__()
        self.words = (nn.EmbeddingBag if bag else nn.Embedding)(9, 4, *args, **options)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens):
        found = self.words(tokens)
        return self.head(torch.tanh(found if found.ndim == 2 else found.mean(1)))


text = {"shape": (3,), "tokens": 9}
kind("embedding", Words, **text)
kind("embedding, padding", lambda: Words(padding_idx=0), **text)
kind("embedding, sparse gradients", lambda: Words(sparse=True), **text)
kind("embedding, largest norm", lambda: Words(max_norm=0.5), **text)
kind("embedding bag", lambda: Words(bag=True), **text)
kind("embedding bag, largest norm", lambda: Words(bag=True, max_norm=0.5), **text)


# --- recurrent nets and attention
@kind("lstm", shape=(3, 4))
class Recurrent(nn.Module):
    def __init__(self, cell=nn.LSTM, **options):
        super().__init__()
        self.cell = cell(4, 3, batch_first=True, **options)
        self.head = nn.LazyLinear(2)
        self(torch.zeros(2, 3, 4))

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


kind("gru", lambda: Recurrent(nn.GRU), shape=(3, 4))
kind("rnn", lambda: Recurrent(nn.RNN), shape=(3, 4))
kind("lstm, two ways", lambda: Recurrent(bidirectional=True, num_layers=2), shape=(3, 4))


@kind("gru cell", shape=(3, 4))
class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        h = x.new_zeros(len(x), 3)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


@kind("multi-head attention", shape=(3, 4))
class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Pooled(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x).mean(1))


def encoder(**options):
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)


kind("encoder layer", lambda: Pooled(encoder()), shape=(3, 4))
kind("encoder layer, norm first", lambda: Pooled(encoder(norm_first=True, activation="gelu")), shape=(3, 4))
kind("encoder", lambda: Pooled(nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False)), shape=(3, 4))


@kind("attention written out", shape=(3, 4))
class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(1))


# --- reparametrised weights: the hooks that make the network what it is
def pruned(amount=0.5, structured=False):
    net = between(nn.ReLU)()
    if structured:
        prune.ln_structured(net[0], "weight", amount, n=2, dim=0)
    else:
        prune.l1_unstructured(net[0], "weight", amount)
    return net


def normed(function):
    net = between(nn.Tanh)()
    function(net[0])
    net(torch.zeros(2, 4))
    return net


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


kind("pruned", pruned)
kind("pruned by rows", lambda: pruned(structured=True))
kind("weight norm", lambda: normed(parametrizations.weight_norm))
kind("weight norm by hooks", lambda: normed(nn.utils.weight_norm))
kind("spectral norm", lambda: normed(parametrizations.spectral_norm))
kind("spectral norm by hooks", lambda: normed(nn.utils.spectral_norm))
kind("orthogonal weights", lambda: normed(lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley")))


@kind("a parametrization of the user's")
def symmetric():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    parametrize.register_parametrization(net[0], "weight", Symmetric())
    return net


# --- tied and odd weights
@kind("tied weights")
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.up.weight = self.down.weight

    def forward(self, x):
        return self.head(self.up(torch.tanh(self.down(x))))


@kind("a layer used twice")
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


@kind("free parameters in a list and a dict")
class Free(nn.Module):
    def __init__(self):
        super().__init__()
        self.some = nn.ParameterList([torch.randn(4, 3), torch.randn(3)])
        self.named = nn.ParameterDict({"v": torch.randn(3, 2)})

    def forward(self, x):
        return torch.tanh(x @ self.some[0] + self.some[1]) @ self.named["v"]


@kind("parameters in a plain list too")
class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)
        self.all = [self.a.weight, self.b.weight]

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, self.all[0])), self.all[1])


@kind("layers in a plain list too")
class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)
        self.order = {"first": [self.a], "rest": (torch.tanh, self.b)}

    def forward(self, x):
        for layer in (*self.order["first"], *self.order["rest"]):
            x = layer(x)
        return x


@kind("an empty parameter")
def empty():
    net = nn.Linear(4, 2)
    net.register_parameter("unused", nn.Parameter(torch.empty(0)))
    return net


@kind("determinant of a free matrix")
class Determinant(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        return torch.stack([torch.linalg.det(w + torch.diag_embed(x)) for w in self.w], -1)


@kind("complex parameters", dtype=None, inputs=lambda: torch.randn(N, 4).double())
class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
        self.head = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.head((x.to(torch.complex128) @ self.w).abs())


@kind("a complex parameter that is a conjugate", dtype=None, inputs=lambda: torch.randn(N, 4).double())
class Conjugate(Complex):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(self.w.detach().conj())


kind(
    "linear over places",
    lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2)),
    shape=(3, 4),
)
kind("bilinear", lambda: Bilinear())


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.form = nn.Bilinear(4, 4, 2)

    def forward(self, x):
        return self.form(x, x)


# --- what goes in and comes out
@kind("two inputs", inputs=lambda: (torch.randn(N, 4).double(), torch.randn(N, 3).double()))
class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, a, b):
        return torch.tanh(self.a(a)) * self.b(b)


@kind("keyword inputs", inputs=lambda: {"a": torch.randn(N, 4).double(), "b": torch.randn(N, 3).double()})
class Keywords(TwoInputs):
    pass


@kind("several heads", output=lambda out: out["main"])
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.main, self.aux = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 5)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return {"main": self.main(h), "aux": self.aux(h)}


Out = namedtuple("Out", ["logits", "hidden"])


@kind("a named tuple comes out", output=lambda out: out.logits)
class Named(Heads):
    def forward(self, x):
        h = torch.tanh(self.body(x))
        return Out(self.main(h), h)


@kind("frozen body")
def frozen():
    net = between(nn.Tanh)()
    net[0].requires_grad_(False)
    return net


kind("biases alone", between(nn.Tanh), params="bias")
kind("training mode", lambda: between(nn.ReLU, nn.Dropout)().train())
kind("evaluation mode", lambda: between(nn.ReLU, nn.Dropout)().eval())
kind("bfloat16", between(nn.Tanh), dtype=torch.bfloat16)
kind("float32", between(nn.Tanh), dtype=torch.float32)


# --- forward passes that write
@kind("writes its input")
class WritesInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.Tanh)()

    def forward(self, x):
        x.sub_(0.5).div_(2.0)
        return self.net(x)


kind("ReLU in place first", lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)))


@kind("keeps its last activation and counts")
class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
        self.last, self.calls = torch.zeros(2, 6), 0

    def forward(self, x):
        h = torch.relu(self.a(x))
        self.last = h.detach()
        self.calls += 1
        return self.b(h)


@kind("carries a hidden state")
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.h = nn.GRUCell(4, 3), nn.Linear(3, 2), None

    def forward(self, x):
        h = self.cell(x, self.h if self.h is not None and len(self.h) == len(x) else None)
        self.h = h.detach()
        return self.head(h)


@kind("appends to a list and fills a dict")
class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
        self.seen, self.cache = [], {}

    def forward(self, x):
        h = torch.tanh(self.a(x))
        self.seen.append(h)
        self.cache[len(self.seen)] = h
        return self.b(h)


class Statistics:
    def __init__(self):
        self.calls, self.sums = 0, []


@kind("fills an object of its own")
class WithObject(Keeps):
    def __init__(self):
        super().__init__()
        self.statistics = Statistics()

    def forward(self, x):
        self.statistics.calls += 1
        self.statistics.sums.append(float(x.detach().sum()))
        return self.b(torch.relu(self.a(x)))


@kind("counts in a buffer")
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.ReLU)()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.net(x)


@kind("averages its input in a buffer that it reads")
class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.ReLU)()
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x):
        out = self.net(x - self.shift)
        with torch.no_grad():
            self.shift.mul_(0.5).add_(0.1)
        return out


@kind("writes a tensor that is no buffer")
class PlainTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.ReLU)()
        self.memory = torch.zeros(3)

    def forward(self, x):
        self.memory.add_(1)
        return self.net(x)


@kind("clamps its weights")
class Clamps(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        with torch.no_grad():
            self.a.weight.clamp_(-0.2, 0.2)
        return self.b(torch.tanh(self.a(x)))


@kind("draws from generators")
class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.own, self.python = between(nn.ReLU)(), torch.Generator(), random.Random(0)

    def forward(self, x):
        torch.rand(1), torch.rand(1, generator=self.own), random.random(), self.python.random()
        return self.net(x)


# --- forwards that are not the class's
@kind("forward replaced by a method")
def rebound():
    net = between(nn.Tanh)()
    net.forward = types.MethodType(lambda self, x: 2 * self[2](torch.tanh(self[0](x))), net)
    return net


@kind("forward replaced by a closure")
def enclosed():
    net = between(nn.Tanh)()
    old, extra = net[0].forward, nn.Parameter(torch.randn(6, 4))
    net[0].register_parameter("extra", extra)
    net[0].forward = lambda x: old(x) + x @ extra.T
    return net


@kind("forward replaced by a partial")
def partially():
    net = between(nn.Tanh)()
    net[0].forward = functools.partial(lambda layer, x: F.linear(x, layer.weight) * 2, net[0])
    return net


@kind("hooks that change what passes")
def hooked():
    net = between(nn.Tanh)()
    net[0].register_forward_hook(lambda module, inputs, output: output * 2)
    net[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return net


@kind("a hook that belongs to the parent")
class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.kept = between(nn.Tanh)(), None
        self.net[0].register_forward_hook(self.keep)

    def keep(self, module, inputs, output):
        self.kept = output

    def forward(self, x):
        return self.net(x) + self.kept.sum(1, keepdim=True)


@kind("a hook on a parameter that masks")
def masked():
    net = between(nn.Tanh)()
    net[0].weight.register_hook(lambda g: g * (g > 0))
    return net


@kind("a hook on a parameter that clips")
def clipped():
    net = between(nn.Tanh)()
    for p in net.parameters():
        p.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return net


# --- programs
@kind("checkpointed")
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = between(nn.Tanh)(), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


@kind("attention in a checkpoint")
class CheckpointedEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(checkpoint(self.layer, x[:, None], use_reentrant=False)[:, 0])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


@kind("a function with a backward of its own")
class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(Square.apply(self.a(x)))


@kind("stops gradients")
class Stops(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        with torch.no_grad():
            gate = torch.sigmoid(self.b(h))
        return self.c(h * gate + h.detach())


kind("traced to a graph", lambda: torch.fx.symbolic_trace(between(nn.ReLU)()))


class Parallel(nn.DataParallel):
    """DataParallel on the device the model was moved to: torch takes the GPUs of the machine, also for a CPU model."""

    def _apply(self, *args, **kwargs):
        moved = super()._apply(*args, **kwargs)
        self.device_ids = [0] if next(self.parameters()).is_cuda else []
        return moved


kind("in DataParallel", lambda: Parallel(between(nn.ReLU)()))
kind("parts in DataParallel", lambda: nn.Sequential(Parallel(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2)))


# --- what is refused
class Depends(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.net, self.how = between(nn.Tanh)(), how

    def forward(self, x):
        return self.net(self.how(x))


kind(
    "batch norm without statistics",
    between(lambda: nn.BatchNorm1d(6, track_running_stats=False)),
    refused="model: its batch norm has no running statistics",
)
kind("mean over the batch", lambda: Depends(lambda x: x - x.mean(0)), refused="model: the prediction")
kind("random predictions", lambda: Depends(lambda x: x + torch.randn_like(x)), refused="model: two equal calls")
kind(
    "scripted", lambda: torch.jit.script(between(nn.ReLU)()), refused="model: expected an nn.Module, got a ScriptModule"
)
kind("lazy", lambda: nn.LazyLinear(2), refused="model: weight has no shape yet")
kind("on the meta device", lambda: nn.Linear(4, 2, device="meta"), refused="model: weight is on the meta device")
kind("frozen whole", lambda: between(nn.Tanh)().requires_grad_(False), refused="model: none of its parameters requires")
kind(
    "whole numbers come out",
    lambda: between(nn.Tanh)(),
    output=lambda out: out.argmax(1),
    refused="model: its outputs are",
)
kind("no parameter reaches the output", lambda: Unreached(), refused="model: none of the parameters that step")
kind("nothing of the batch comes out", between(nn.Tanh), output=lambda out: out.mean(), refused="model: ")
kind("dynamic quantisation", lambda: Quantised(), refused="model: none of its parameters requires")
kind(
    "sparse inputs",
    between(nn.Tanh),
    inputs=lambda: torch.eye(5, 4).double().to_sparse(),
    refused="sources: inputs are sparse",
)


class Unreached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return x[:, :2] * 2


def Quantised():
    return torch.ao.quantization.quantize_dynamic(between(nn.ReLU)(), {nn.Linear}, dtype=torch.qint8)


@kind("two names for one piece of memory", refused="model: 0.weight and 2.weight share memory")
def overlapping():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    net[2].weight = nn.Parameter(net[0].weight.data)
    return net


@kind("a parameter in a tuple", refused="model: its forward pass")
class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)
        self.all = (self.a.weight,)

    def forward(self, x):
        return F.linear(x, self.all[0])


@kind("a hook after accumulation", refused="model: 0.weight has a post-accumulate-grad hook")
def accumulating():
    net = between(nn.Tanh)()
    net[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    return net


# --- what an attacker found
class OnObject(Keeps):
    """Writes to something that it holds, which is neither a tensor nor a list."""

    def __init__(self, held, write):
        super().__init__()
        self.held, self.write = held, write

    def forward(self, x):
        self.write(self.held)
        return self.b(torch.relu(self.a(x)))


@dataclass(slots=True)
class Slotted:
    calls: int = 0


@dataclass(slots=True)
class Guarded:
    calls: int = 0
    lock: Any = field(default_factory=threading.Lock)


def with_graph():
    """A namespace with an activation, which `copy.deepcopy` does not copy."""
    return types.SimpleNamespace(calls=0, last=torch.ones(2, requires_grad=True) * 2)


class AttributeDict(dict):
    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__ = self


def count_up(held):
    held.calls += 1


HELD = {
    "a namespace": (lambda: types.SimpleNamespace(calls=0), count_up),
    "a namespace with an activation": (with_graph, count_up),
    "an object with slots": (Slotted, count_up),
    "an object with slots and a lock": (Guarded, count_up),
    "a user's dict": (lambda: UserDict(calls=0), lambda held: held.update(calls=held["calls"] + 1)),
    "a dict of attributes": (lambda: AttributeDict(log=[]), lambda held: held.log.append(1)),
    "an array": (lambda: np.zeros(3), lambda held: held.__iadd__(1)),
    "an iterator": (itertools.count, next),
    "a bytearray": (lambda: bytearray(1), lambda held: held.append(1)),
}
for held, (make_held, write_held) in HELD.items():
    kind(f"writes to {held}", lambda make_held=make_held, write_held=write_held: OnObject(make_held(), write_held))


class Divides(nn.Module):
    """Its outputs are divided by how often it was called, which it counts outside of torch."""

    def __init__(self, state, count):
        super().__init__()
        self.net, self.state, self.count = between(nn.Tanh)(), state, count

    def forward(self, x):
        self.count(self.state)
        return self.net(x) / float(self.state.calls if hasattr(self.state, "calls") else self.state[0])


kind("divides by a count in a namespace", lambda: Divides(types.SimpleNamespace(calls=0), count_up))
kind("divides by a count in an array", lambda: Divides(np.zeros(1), lambda held: held.__iadd__(1)))


@kind("a conjugate that is no buffer", dtype=None, inputs=lambda: torch.randn(N, 4).double())
class Conjugated(Complex):
    def __init__(self):
        super().__init__()
        self.turn = torch.randn(3, dtype=torch.complex128).conj()

    def forward(self, x):
        return self.head(torch.tanh(((x.to(torch.complex128) @ self.w) * self.turn.to(x.device)).real))


@kind("a view of a weight in a namespace", refused="model: its forward pass")
class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2).double()
        self.held = types.SimpleNamespace(flat=self.a.weight.detach().view(-1))

    def forward(self, x):
        return self.a(x) + x @ self.held.flat.view(2, 4).T


@kind("rebinds a buffer and reads it")
class Rebinds(Running):
    def forward(self, x):
        out = self.net(x - self.shift)
        self.shift = self.shift + 0.1
        return out


@kind("writes a buffer with gradients on only")
class InGradMode(Running):
    def forward(self, x):
        out = self.net(x - self.shift)
        if torch.is_grad_enabled():
            self.shift.data.add_(0.1)
        return out


@kind("swaps the memory of a buffer")
class Swaps(Running):
    def forward(self, x):
        out = self.net(x - self.shift)
        self.shift.data = self.shift + x.detach().mean()
        return out


@kind("sorts its batch")
class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.Tanh)()

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.net(x[order])[order.argsort()]


@kind("reads an attribute of its weight")
class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
        self.a.weight.scale = 3.0

    def forward(self, x):
        scale = self.a.weight.scale if isinstance(self.a.weight, nn.Parameter) else 1.0
        return self.b(torch.tanh(self.a(x))) * scale


@kind("a hook that looks modules up")
def recorded():
    net = between(nn.Tanh)()
    names, seen = {module: name for name, module in net.named_modules()}, {}

    def record(module, inputs, output):
        seen[names[module]] = output

    for module in net:
        module.register_forward_hook(record)
    return net


@kind("a module with slots")
class WithSlots(Keeps):
    __slots__ = ("gain",)

    def __init__(self):
        super().__init__()
        object.__setattr__(self, "gain", 2.0)

    def forward(self, x):
        return self.gain * self.b(torch.relu(self.a(x)))


@kind("a gate of a Python number")
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = self.a(x)
        gates = torch.tensor([1.0 if value > 0 else 0.5 for value in h[:, 0].tolist()], dtype=x.dtype, device=x.device)
        return self.b(torch.tanh(h)) * gates[:, None]


@kind("experts, of which an example meets one")
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)), nn.Linear(3, 2)

    def forward(self, x):
        rows = [self.experts[int(row[0] > 0)](row) for row in x]
        return self.head(torch.tanh(torch.stack(rows)))


kind("a weight in a closure of an alias", lambda: Aliased(), refused="model: its forward pass")


class Aliased(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)
        alias = self.a.double().weight.detach()
        self.f = lambda x: x @ alias.T

    def forward(self, x):
        return self.f(x) + self.a.bias


@kind("a hook on a parameter that keeps a state")
def adaptive():
    net = between(nn.Tanh)()
    norms = [1.0]

    def clip(g):
        norms.append(float(g.norm()))
        return g / (1 + norms[0])

    net[0].weight.register_hook(clip)
    net.norms = norms
    return net


# --- what a second attacker found
@kind("hooks that share a variable")
def sharing():
    net, skip = between(nn.Tanh)(), None

    def keep(module, given):
        nonlocal skip
        skip = given[0]

    net[0].register_forward_pre_hook(keep)
    net[2].register_forward_hook(lambda module, given, out: out + skip[:, :2])
    return net


class Tripled(Parallel):
    """A wrapper that computes something itself."""

    def forward(self, x):
        return 3 * super().forward(x)


@kind("a hook on DataParallel")
def hooked_wrapper():
    net = Parallel(between(nn.Tanh)())
    net.register_forward_hook(lambda module, given, out: 3 * out)
    return net


kind("a subclass of DataParallel", lambda: Tripled(between(nn.Tanh)()))


@kind("outputs in float64", dtype=torch.float32)
class Promoted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = between(nn.Tanh)()

    def forward(self, x):
        return self.net(x).double()


@kind("a part under no_grad")
class PartlyOff(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        with torch.no_grad():
            h = self.a(x)
        return self.b(h.tanh())


class Owner:
    """Gives something back at its end."""

    ended = 0

    def __del__(self):
        type(self).ended += 1


kind("an object with an end", lambda: OnObject(Owner(), lambda held: None))
kind("a file", lambda: OnObject(open("/dev/null", "w"), lambda held: held.write("x")))  # noqa: SIM115
kind("torch.func inside", lambda: Inner())


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        return torch.func.vmap(torch.func.grad(lambda one: self.net(one[None]).sum()))(x)[:, :2]


@kind("an LSTM that takes examples for times", shape=(3, 4), refused="model: the prediction")
class Mistaken(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@kind("another thread")
class InThread(nn.Module):
    """Under vmap the thread fails, and the forward pass then raises an IndexError."""

    def __init__(self):
        super().__init__()
        self.net = between(nn.Tanh)()

    def forward(self, x):
        found = []
        thread = threading.Thread(target=self._run, args=(x, found))
        thread.start()
        thread.join()
        return found[0]

    def _run(self, x, found):
        with contextlib.suppress(RuntimeError):
            found.append(self.net(x))


def by_the_largest(x):
    return x / torch.cat([x[:1] * 10, x]).abs().max()


kind(
    "scaled by the largest of the batch, the first",
    lambda: Depends(by_the_largest),
    refused="model: the prediction",
)


@kind("reentrant checkpoints", refused="model: checkpoint(..., use_reentrant=True)")
class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.net = nn.Linear(4, 4), between(nn.Tanh)()

    def forward(self, x):
        return checkpoint(self.net, self.a(x), use_reentrant=True)
