"""What watching costs: a probe against the released notebooks' way, the share of an epoch, and memory.

    python benchmarks/monitor.py                 # on the CPU
    python benchmarks/monitor.py --device cuda   # on a GPU

*Released* is written as the notebooks of Dan et al. do it: for each of the 60 sources and each of 3 target classes the
model is built again, the weights are copied in, one step is taken, and the 20 targets are predicted one by one, before
and after. It is timed on some of the 180 updates and scaled to all. An epoch trains on 15,000 images in batches of 256,
with 7 probes and without, in turns, with and without a store on disk; five epochs are watched with the default budget.
Every turn trains a new network, since a source that is learned is another thing to measure. Probes are timed until they
are written down; epochs until nothing is under way any more. Ratios are taken within a turn; the median over turns is
reported. Figures go to benchmarks/results/monitor-<device>.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from ways import forget_peak_memory, peak_memory, seconds

import local_elasticity as le

RESULTS = Path(__file__).parent / "results"
POINTS, CLASSES, UPDATES = 20, 3, 180
RATE = 1e-4
WITHIN = 0.01
"""An engine counts where its similarities are within this share of the exact ones."""

BUDGET = 0.1
"""The default of le.Monitor."""

ENGINES = {"cpu": ("auto", "linearized"), "cuda": ("auto", "structured", "vmapped", "looped", "linearized")}


def points(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS * CLASSES, 3, 32, 32, generator=generator)
    return x.to(device), torch.arange(CLASSES).repeat_interleave(POINTS).to(device)


def released(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, updates: int) -> None:
    """Rebuild, step, predict one by one."""
    for update in range(updates):
        source, targets = update % len(x), x[POINTS * (update // len(x) % CLASSES) :][:POINTS]
        model = le.models.ResNet18(CLASSES).to(x.device)
        model.load_state_dict(net.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        before = [model(target[None]).softmax(1).detach().cpu() for target in (x[source], *targets)]
        optimizer.zero_grad()
        F.cross_entropy(model(x[source : source + 1]), y[source : source + 1]).backward()
        optimizer.step()
        after = [model(target[None]).softmax(1).detach().cpu() for target in (x[source], *targets)]
        for p, q in zip(after, before, strict=True):
            F.kl_div(p.log(), q, reduction="batchmean")


def monitor_of(net: torch.nn.Module, device: str, engine: str = "auto", **options: Any) -> le.Monitor:
    return le.Monitor(
        net,
        points(device),
        loss="cross_entropy",
        measure=("kl", "relative_l1"),
        update=le.SGD(RATE),
        engine=engine,
        **{"every": 1, "budget": None, **options},
    )


def probe_against_released(device: str, repeats: int, updates: int) -> dict[str, Any]:
    net = le.models.ResNet18(CLASSES).to(device)
    x, y = points(device)
    monitors = {engine: monitor_of(net, device, engine) for engine in ENGINES[device.partition(":")[0]]}
    for monitor in monitors.values():
        monitor.probe(0)
        monitor.probe(1)
        monitor.close()
    exact = monitors["auto"].history[0].similarity["kl"]
    released(net, x, y, 2)
    turns = []
    for turn in range(repeats):
        before = seconds(lambda: released(net, x, y, updates))
        probes = {
            name: seconds(lambda monitor=monitor, turn=turn: (monitor.probe(2 + turn), monitor.close()))
            for name, monitor in monitors.items()
        }
        after = seconds(lambda: released(net, x, y, updates))
        turns.append({"released": (before + after) / 2 * UPDATES / updates, **probes})
    middle = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    error = {
        name: float(abs(monitor.history[0].similarity["kl"] - exact).max() / exact.max())
        for name, monitor in monitors.items()
    }
    return {
        "seconds": middle,
        "auto is": monitors["auto"].history[0].engine,
        "largest difference from auto": error,
        "released / auto": statistics.median(turn["released"] / turn["auto"] for turn in turns),
        "released updates timed": 2 * updates,
    }


def training(
    device: str,
    images: int,
    engine: str,
    repeats: int,
    *,
    epochs: int = 1,
    budget: float | None = None,
    stored: bool = False,
) -> dict[str, Any]:
    """Seconds of epochs with and without 7 probes each, or as many as a budget allows, and the peak memory of both."""
    x = torch.randn(images, 3, 32, 32, device=device)
    y = torch.arange(images, device=device) % CLASSES
    steps = images // 256
    schedule = le.training.PerEpoch(min(7, steps), steps)

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, monitor: le.Monitor | None = None) -> None:
        for step in range(epochs * steps):
            rows = slice(256 * (step % steps), 256 * (step % steps + 1))
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
            if monitor is not None:
                monitor.step(step)
        if monitor is not None:
            monitor.close()

    def run(folder: str, watched: bool) -> tuple[Callable[[], None], le.Monitor | None]:
        """Training of a new network, which has seen one step, and its monitor."""
        net = le.models.ResNet18(CLASSES).to(device)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        F.cross_entropy(net(x[:256]), y[:256]).backward()
        optimizer.step()
        store = f"{folder}/{uuid.uuid4().hex}.zarr" if stored else None
        options = {"every": None, "schedule": schedule, "budget": budget, "store": store}
        monitor = monitor_of(net, device, engine, **options) if watched else None
        return partial(train, net, optimizer, monitor), monitor

    turns, probes = [], []
    with TemporaryDirectory() as folder:
        memory = {name: _peak(device, run(folder, name == "watched")[0]) for name in ("alone", "watched")}
        for _ in range(repeats):
            alone = seconds(run(folder, False)[0])
            work, monitor = run(folder, True)
            turns.append((alone, seconds(work)))
            probes.append(len(monitor.history) if monitor else 0)
    return {
        "engine": engine,
        "images": images,
        "epochs": epochs,
        "budget": budget,
        "stored": stored,
        "probes planned": epochs * min(7, steps),
        "probes taken": statistics.median(probes),
        "seconds alone": statistics.median(alone for alone, _ in turns),
        "seconds watched": statistics.median(watched for _, watched in turns),
        "overhead": statistics.median(watched / alone - 1 for alone, watched in turns),
        "overheads": [watched / alone - 1 for alone, watched in turns],
        "peak memory GiB": memory,
    }


def _peak(device: str, work: Callable[[], None]) -> float:
    forget_peak_memory(device)
    work()
    return peak_memory(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="one turn, few updates and images: to see that it runs")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    repeats = 1 if options.quick else 7 if on_gpu else 3
    probe = probe_against_released(options.device, repeats, 2 if options.quick else 12 if on_gpu else 4)
    print(f"a probe of 60 x 60: {probe}", flush=True)
    images = 15_000 if on_gpu else 512
    engines = ("auto", "structured", "linearized") if on_gpu else ("auto", "linearized")
    epochs = [training(options.device, images, engine, repeats) for engine in engines]
    stored = training(options.device, images, "auto", repeats, stored=True)
    kept = training(options.device, images, "auto", repeats, epochs=5, budget=BUDGET)
    for one in (*epochs, stored, kept):
        print(f"epochs of {one['images']} images: {one}", flush=True)
    wanted = 300.0 if on_gpu else 8.0
    close = [one for one in epochs if probe["largest difference from auto"][one["engine"]] <= WITHIN]
    cheapest = min(close, key=lambda one: one["overhead"])
    verdicts = [
        (f"released / auto at least {wanted:g}", probe["released / auto"], probe["released / auto"] >= wanted),
        ("7 probes in an epoch of 15,000 images: at most 0.3", cheapest["overhead"], cheapest["overhead"] <= 0.3),
        ("7 probes, stored, in an epoch of 15,000 images: at most 0.3", stored["overhead"], stored["overhead"] <= 0.3),
        ("5 epochs with the default budget: at most 0.1", kept["overhead"], kept["overhead"] <= BUDGET),
    ]
    report = {
        "machine": f"one {torch.cuda.get_device_name()}" if on_gpu else f"{torch.get_num_threads()} CPU threads",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "turns": repeats,
        "probe": probe,
        "epochs": [*epochs, stored, kept],
        "verdicts": [(what, value, "pass" if met else "miss") for what, value, met in verdicts[: 4 if on_gpu else 1]],
    }
    out = options.out or RESULTS / f"monitor-{options.device.partition(':')[0]}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for what, value, verdict in report["verdicts"]:  # type: ignore[attr-defined]
        print(f"{verdict:5} {value:8.2f}  {what}")


if __name__ == "__main__":
    main()
