"""What an index of influences costs and how right it is: ResNet-18 without batch norm at CIFAR-sized images.

    python benchmarks/influence.py                            # 512 images, a narrow net: results/influence-cpu.json
    python benchmarks/influence.py --device cuda              # 50,000 images, ResNet-18: results/influence-cuda.json

Images are random, with a mean for each class, so that there is something to learn. The network takes some steps of SGD
first. The index is built, opened again, and asked about test images; `query` compares scores with exact responses.
Rank correlations are given for several dimensions of the sketch on some of the examples.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import local_elasticity as le
from local_elasticity.models.resnet18 import ResNet18

RESULTS = Path(__file__).parent / "results"
CLASSES, RATE, BATCH, TARGETS = 10, 0.01, 128, 100
SIZES = {"cpu": (512, 16, 60), "cuda": (50_000, 64, 400)}
"""Examples, width of the network, steps of training, by the kind of device."""

DIMENSIONS = (1024, 4096, 16384)
COMPARED = 512
"""Examples that several dimensions are compared on."""


class AtFullSize(nn.Module):
    """ResNet-18 as it is used for 32 × 32 images: a 3 × 3 stem and no pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = ResNet18(CLASSES, width=width)
        self.net.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.net.stem.weight, mode="fan_out", nonlinearity="relu")
        self.net.pool = nn.Identity()
        for block in (block for stage in self.net.stages for block in stage):
            nn.init.zeros_(block.second.weight)  # without normalisation, deep residual nets begin as shallow ones

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random images around a mean for each class."""
    means = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    return torch.randn(n, 3, 32, 32, generator=generator) + 0.1 * means[y], y


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int, device: torch.device) -> float:
    """Some steps of SGD; the accuracy on the last batches."""
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
    right = []
    for step in range(steps):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        inputs, labels = x[rows].to(device), y[rows].to(device)
        optimizer.zero_grad()
        outputs = net(inputs)
        cross_entropy(outputs, labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        right.append(float((outputs.argmax(1) == labels).float().mean()))
    return sum(right[-10:]) / len(right[-10:])


def timed(function: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - began, 2), found


def measured(device: str, n: int, width: int, steps: int, dimension: int | None) -> dict[str, Any]:
    place = torch.device(device)
    torch.manual_seed(0)
    net = AtFullSize(width).to(place)
    x, y = images(n, 1)
    test = tuple(part.to(place) for part in images(TARGETS, 2))
    found: dict[str, Any] = {"examples": n, "parameters": sum(p.numel() for p in net.parameters())}
    found["accuracy of the last batches"] = train(net, x, y, steps, place)
    folder = Path(tempfile.mkdtemp())
    options: dict[str, Any] = {"loss": "cross_entropy", "step_size": 1e-4, "progress": True}
    options |= {} if dimension is None else {"dimension": dimension}
    try:
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()

        def built() -> le.InfluenceIndex:
            return le.influence_index(net, (x, y), store=folder / "index.zarr", **options)

        found["seconds to build"], index = timed(built)
        found["seconds to open"], index = timed(built)
        found["dimension"] = index.dimension
        found["bytes on disk"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if device != "cpu":
            found["peak bytes on the GPU"] = torch.cuda.max_memory_allocated()
        found["seconds for the scores of 100 targets"], _ = timed(lambda: index.scores(test))
        found["seconds for a query with its check"], query = timed(lambda: index.query(test, top=10))
        found["query"] = told(query)
        found["by dimension, on some examples"] = {
            str(size): told(
                le.influence_index(
                    net,
                    (x[:COMPARED], y[:COMPARED]),
                    store=folder / f"{size}.zarr",
                    **{**options, "dimension": size},
                ).query(test, top=10)
            )
            for size in DIMENSIONS
        }
    finally:
        shutil.rmtree(folder)
    return found


def told(query: le.Influences) -> dict[str, float]:
    return {
        "rank correlation with exact responses": round(query.rank_correlation, 4),
        "rank correlation with their limit": round(query.limit_rank_correlation, 4),
        "listed with the sign of their exact response": round(query.sign_agreement, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, help="examples")
    parser.add_argument("--dimension", type=int, help="of the sketch; by default that of le.influence_index")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kind = torch.device(options.device).type
    n, width, steps = SIZES[kind]
    found = measured(options.device, options.n or n, width, steps, options.dimension)
    machine = f"{os.cpu_count()} CPU cores" if kind == "cpu" else torch.cuda.get_device_name()
    report = {"machine": machine, "torch": str(torch.__version__), "python": platform.python_version(), **found}
    print(json.dumps(report, indent=1))
    out = options.out or RESULTS / f"influence-{kind}.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
