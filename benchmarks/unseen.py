"""Five networks of other kinds that nothing was tuned for: what `auto` chooses, how fast and how right it is.

    python benchmarks/unseen.py                  # figures to results/unseen-cpu.json
    python benchmarks/unseen.py --device cuda

Segmentation, audio, graphs, diffusion and tables. Loops and figures are those of modern.py.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import local_elasticity as le
from modern import Job, measured, write


def block(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU(0.1)),
        *(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.LeakyReLU(0.1)),
    )


class UNet(nn.Module):
    """A class for every pixel: down twice, up twice, with shortcuts."""

    def __init__(self, width: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        x = self.down[2](F.max_pool2d(second, 2))
        for up, kept in zip(self.up, (second, first), strict=True):
            x = up(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False), kept], 1))
        found: Tensor = self.head(x)
        return found


class Keywords(nn.Module):
    """Words in a waveform: strided convolutions, a recurrent layer, attention over time."""

    def __init__(self, width: int = 32, words: int = 10) -> None:
        super().__init__()
        self.front = nn.Sequential(
            *(nn.Conv1d(1, width, 80, 16), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4)),
            *(nn.Conv1d(width, 2 * width, 3, padding=1), nn.BatchNorm1d(2 * width), nn.GELU(), nn.MaxPool1d(4)),
        )
        self.over_time = nn.GRU(2 * width, width, batch_first=True, bidirectional=True)
        self.weigh, self.head = nn.Linear(2 * width, 1), nn.Linear(2 * width, words)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.over_time(self.front(x[:, None]).transpose(1, 2))
        found: Tensor = self.head((self.weigh(x).softmax(1) * x).sum(1))
        return found


class GraphAttention(nn.Module):
    """Graphs as features of nodes and an adjacency matrix; two heads look at neighbours alone."""

    def __init__(self, features: int = 12, width: int = 32, layers: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.values = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scores = nn.ModuleList(nn.Linear(width, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.embed(x)
        for values, scores, norm in zip(self.values, self.scores, self.norms, strict=True):
            to, of = scores(x).transpose(1, 2).chunk(2, 1)
            weights = F.leaky_relu(to[..., None] + of[:, :, None], 0.2)
            weights = weights.masked_fill(adjacency[:, None] == 0, -1e9).softmax(-1)
            heads = values(x).unflatten(-1, (2, -1)).transpose(1, 2)
            x = norm(x + F.elu((weights @ heads).transpose(1, 2).flatten(2)))
        found: Tensor = self.head(x.mean(1))
        return found


class Denoiser(nn.Module):
    """The noise in a picture, given the time: group norms, shifts and scales by time, attention over places."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, 4 * width))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(4))
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.down, self.up = nn.Conv2d(width, width, 3, 2, 1), nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(16, device=x.device, dtype=x.dtype) / 16)
        angles = t[:, None].to(x.dtype) * rates
        by_time = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(4, 1)
        x = kept = self.first(x)
        for i, layer in enumerate(self.layers):
            scale, shift = (part[:, :, None, None] for part in by_time[2 * i : 2 * i + 2])
            x = x + layer(F.silu(self.norms[i](x) * (1 + scale) + shift))
        x = self.down(x)
        q, k, v = self.qkv(self.norms[2](x)).flatten(2).transpose(1, 2).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).unflatten(2, x.shape[2:]))
        found: Tensor = self.last(F.silu(self.norms[3](self.up(x) + kept)))
        return found


class Table(nn.Module):
    """Numbers and categories as tokens, each with a weight and bias of its own; a transformer over them."""

    def __init__(self, numbers: int = 8, categories: int = 4, width: int = 32) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(numbers, width))
        self.bias = nn.Parameter(0.3 * torch.randn(numbers, width))
        self.embed = nn.Embedding(10 * categories, width)
        self.offsets: Tensor
        self.register_buffer("offsets", 10 * torch.arange(categories))
        self.token = nn.Parameter(0.3 * torch.randn(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        tokens = numbers[:, :, None] * self.weight + self.bias
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens, self.embed(categories + self.offsets)], 1)
        found: Tensor = self.head(self.layers(tokens)[:, 0])
        return found


def segmentation(n: int) -> Job:
    problem = le.Problem.of(UNet().eval(), "cross_entropy")
    return Job(problem, torch.randn(n, 3, 16, 16), torch.randint(0, 3, (n, 16, 16)))


def audio(n: int) -> Job:
    return Job(le.Problem.of(Keywords().eval(), "cross_entropy"), torch.randn(n, 8000), torch.arange(n) % 10)


def graphs(n: int) -> Job:
    met = torch.rand(n, 15, 15) < 0.2
    inputs = torch.randn(n, 15, 12), (met | met.mT | torch.eye(15, dtype=torch.bool)).float()
    return Job(le.Problem.of(GraphAttention().eval(), "cross_entropy"), inputs, torch.arange(n) % 4)


def diffusion(n: int) -> Job:
    inputs = torch.randn(n, 3, 8, 8), torch.randint(0, 1000, (n,))
    return Job(le.Problem.of(Denoiser().eval(), "mse"), inputs, torch.randn(n, 3, 8, 8))


def tables(n: int) -> Job:
    inputs = torch.randn(n, 8), torch.randint(0, 10, (n, 4))
    return Job(le.Problem.of(Table().eval(), "mse"), inputs, torch.randn(n, 1))


NETWORKS: dict[str, Callable[[int], Job]] = {
    "U-Net, segmentation": segmentation,
    "audio, convolutions and GRU": audio,
    "graph attention": graphs,
    "diffusion, U-Net with time": diffusion,
    "tables, transformer": tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--machine", default="", help="the machine in words, as it is written into the results")
    parser.add_argument("--n", type=int, default=60)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, make in NETWORKS.items():
        work = lambda make=make: make(options.n)
        with torch.backends.cudnn.flags(enabled="GRU" not in name):  # which has no gradients in evaluation mode
            results[name] = measured(name, work, options.device, linear=True, engine="auto")
        write(results, options, "unseen")


if __name__ == "__main__":
    main()
