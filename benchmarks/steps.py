"""Which step size: how far similarities are from their limit of small steps, on ten small networks.

    python benchmarks/steps.py

Every network reads handwritten digits (scikit-learn), at its start and after a short training with Adam. For every step
size the similarities `relative` of 30 images are compared with their limit (`approximate=True`): rank correlation over
pairs, the nonlinearity that the result carries, and the share of unresolved pairs. The step of `le.SGD("auto")` is
measured in the same way. Figures go to benchmarks/results/steps-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import Tensor, nn

import local_elasticity as le

RESULTS = Path(__file__).parent / "results"
SIZES: tuple[float | str, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, "auto")
SOURCES, TRAINED, STEPS, BATCH = 30, 1000, 150, 32


class Patches(nn.Module):
    """Patches of 4 × 4 as tokens, mixed by what it is given, and a linear head."""

    def __init__(self, body: nn.Module, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.body, self.norm, self.head = body, nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        found: Tensor = self.head(self.norm(self.body(tokens)).mean(1))
        return found


class Mixer(nn.Module):
    """Two MLPs by turns, over places and over channels."""

    def __init__(self, width: int = 48, places: int = 16) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.over_places = nn.ModuleList(_mlp(places) for _ in range(2))
        self.over_channels = nn.ModuleList(_mlp(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            x = x + self.over_places[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.over_channels[i](self.norms[2 * i + 1](x))
        return x


class ConvNext(nn.Module):
    """Depthwise convolutions, norms over channels and pointwise MLPs, with residuals."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, 2)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.points = nn.ModuleList(_mlp(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for deep, norm, points in zip(self.deep, self.norms, self.points, strict=True):
            x = x + points(norm(deep(x).movedim(1, -1))).movedim(-1, 1)
        found: Tensor = self.head(x.mean((2, 3)))
        return found


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(x[:, 0])[0][:, -1])
        return found


class Coloured(nn.Module):
    """A network of colour images, on grey ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x.expand(-1, 3, -1, -1))
        return found


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def _encoder(*, before: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, "gelu", batch_first=True, norm_first=before)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "two-layer ReLU, width 4096 (He & Su)": lambda: nn.Sequential(nn.Flatten(), le.models.fnn(256, 10, width=4096)),
    "three-layer tanh": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    ),
    "CNN (He & Su)": lambda: le.models.cnn(10, size=16),
    "ResNet-18 without norm, width 8 (Dan et al.)": lambda: Coloured(le.models.ResNet18(10, width=8)),
    "ResNet-20 with batch norm": lambda: Coloured(le.models.resnet20()),
    "ConvNeXt, three blocks": ConvNext,
    "ViT, four layers": lambda: Patches(_encoder(before=True)),
    "ViT, norms after": lambda: Patches(_encoder(before=False)),
    "MLP-Mixer": lambda: Patches(Mixer()),
    "LSTM over rows": Rows,
}


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return F.interpolate(images, scale_factor=2.0), torch.tensor(y)


def train(net: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net.train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        some = torch.randint(0, TRAINED, (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(net(x[some]), y[some]).backward()
        optimizer.step()
    net.eval()


def compared(net: nn.Module, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    """A row for every step: how far from the limit."""
    sources = x[-SOURCES:], y[-SOURCES:]
    others = ~np.eye(SOURCES, dtype=bool)
    limit = le.similarity(net, sources, loss="cross_entropy", approximate=True).values[others]
    rows = []
    for size in SIZES:
        began = time.perf_counter()
        S = le.similarity(net, sources, loss="cross_entropy", update=le.SGD(size))
        found = S.values[others]
        known = np.isfinite(found) & np.isfinite(limit)
        rows.append(
            {
                "step": size,
                "step size": S.attrs["step_size"],
                "rank correlation": round(float(spearmanr(found[known], limit[known])[0]), 4),
                "largest deviation": float(f"{np.abs(found[known] - limit[known]).max():.2g}"),
                "nonlinearity": float(f"{S.attrs.get('nonlinearity', np.nan):.2g}"),
                "unresolved": round(S.attrs["unresolved"], 3),
                "seconds": round(time.perf_counter() - began, 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "steps-cpu.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", le.LargeStepWarning)
    x, y = digits()
    found: dict[str, Any] = {}
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        net = make().eval()
        found[name] = {"at the start": compared(net, x, y)}
        train(net, x, y)
        found[name]["accuracy"] = round(float((net(x[TRAINED:]).argmax(1) == y[TRAINED:]).float().mean()), 3)
        found[name]["trained"] = compared(net, x, y)
        for when in ("at the start", "trained"):
            told = "  ".join(f"{row['step size']:.0e}: {row['rank correlation']:.3f}" for row in found[name][when])
            print(f"{name}, {when}: {told}", flush=True)
    report = {
        "machine": f"{os.cpu_count()} CPU cores (threads: {torch.get_num_threads()})",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "networks": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
